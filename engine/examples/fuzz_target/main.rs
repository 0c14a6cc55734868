//! A fuzz target of a message handler over RC, in one process: two queue pairs, no sockets, no threads, virtual time. The same
//! input gives the same packets.
//!
//!     cargo run --release -p urxe-engine --example fuzz_target [FILE...]
//!
//! Without files it runs random inputs; with cargo-fuzz or afl.rs, `fuzz_target!(|data: &[u8]| { one_input(data).unwrap(); })` is all.

extern crate alloc;

#[path = "../two_queue_pairs/end.rs"]
mod end;

use std::time::Instant as Moment;

use end::{End, Result, exchange};
use urxe_engine::rng::Rng;
use urxe_engine::{Instant, Memory, RecvWr, SendOp, WcOpcode, WcStatus};

/// Bytes of a message.
const SLOT: u32 = 128;
/// Where the ends have what they send, and what they receive.
const SENT: u64 = 0;
const RECEIVED: u64 = 4096;

/// The program under test: answers a request with its fields in the opposite order. Put your own here.
fn handle(request: &[u8]) -> Vec<u8> {
    let mut fields: Vec<&[u8]> = request.split(|byte| *byte == b',').collect();
    fields.reverse();
    fields.join(&b","[..])
}

/// Sends a message from one end to the other, and returns what has come, and how many packets it took. Every `lost`th packet is lost.
fn carry(ends: &mut [End; 2], now: Instant, from: usize, message: &[u8], lost: u8) -> Result<(Vec<u8>, u32)> {
    let length = u32::try_from(message.len())?;
    let [sender, receiver] = if from == 0 { [0, 1] } else { [1, 0] };
    let (buffers, receives) = (ends[sender].buffer.sge(SENT, length), ends[receiver].buffer.sge(RECEIVED, SLOT));
    ends[receiver].endpoint.post_recv(now, ends[receiver].qpn, RecvWr { wr_id: 1, buffers: receives })?;
    ends[sender].endpoint.memory().write(ends[sender].buffer.addr + SENT, message)?;
    ends[sender].post(now, 2, SendOp::Send, buffers)?;
    let mut packets = 0_u32;
    exchange(ends, now, |_| {
        packets += 1;
        lost == 0 || !packets.is_multiple_of(u32::from(lost))
    });
    let mut came = Vec::new();
    for end in &mut *ends {
        while let Some(cqe) = end.endpoint.poll_cq(end.cq) {
            assert_eq!(cqe.status, WcStatus::Success);
            if cqe.opcode == WcOpcode::Recv {
                came.resize(usize::try_from(cqe.byte_len)?, 0);
            }
        }
    }
    ends[receiver].endpoint.memory().read(ends[receiver].buffer.addr + RECEIVED, &mut came)?;
    Ok((came, packets))
}

/// One execution: the first byte says which packets are lost, the rest is the request.
fn one_input(data: &[u8]) -> Result<u32> {
    let Some((lost, request)) = data.split_first() else { return Ok(0) };
    let request = &request[..request.len().min(SLOT as usize)];
    // Every third packet at most: a request is sent eight times.
    let lost = if *lost < 3 { 0 } else { *lost };
    let now = Instant::default();
    let mut ends = End::pair(now)?;
    let (asked, there) = carry(&mut ends, now, 0, request, lost)?;
    assert!(asked == request && ends[1].holds(RECEIVED, request)?);
    let reply = handle(&asked);
    let (answered, back) = carry(&mut ends, now, 1, &reply, lost)?;
    assert_eq!(answered, reply);
    Ok(there + back)
}

fn main() -> Result<()> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    for file in &files {
        println!("{}: {} packets", file.to_string_lossy(), one_input(&std::fs::read(file)?)?);
    }
    if !files.is_empty() {
        return Ok(());
    }
    const EXECUTIONS: u32 = 20_000;
    let (mut rng, began, mut packets) = (Rng::new(1), Moment::now(), 0);
    for _ in 0..EXECUTIONS {
        let data: Vec<u8> = (0..rng.next_u64() % 150).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
        let count = one_input(&data)?;
        assert_eq!(count, one_input(&data)?, "the same input gives the same packets");
        packets += count;
    }
    let rate = f64::from(2 * EXECUTIONS) / began.elapsed().as_secs_f64();
    println!("{EXECUTIONS} inputs twice, {packets} packets, {rate:.0} executions/s");
    Ok(())
}
