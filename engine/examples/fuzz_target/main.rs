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

/// Sends a message from one end to the other, and returns what has come, and how many packets it took. Each of the first seven is lost
/// if its bit in `lost` is set; a request is sent eight times.
fn carry(ends: &mut [End; 2], now: &mut Instant, from: usize, message: &[u8], lost: u8) -> Result<(Vec<u8>, u32)> {
    let length = u32::try_from(message.len())?;
    let [sender, receiver] = if from == 0 { [0, 1] } else { [1, 0] };
    let (buffers, receives) = (ends[sender].buffer.sge(SENT, length), ends[receiver].buffer.sge(RECEIVED, SLOT));
    ends[receiver].endpoint.post_recv(*now, ends[receiver].qpn, RecvWr { wr_id: 1, buffers: receives })?;
    ends[sender].endpoint.memory().write(ends[sender].buffer.addr + SENT, message)?;
    ends[sender].post(*now, 2, SendOp::Send, buffers)?;
    let mut packets = 0_u32;
    *now = exchange(ends, *now, |_| {
        packets += 1;
        packets > 7 || (lost >> (packets - 1)) & 1 == 0
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
    let mut now = Instant::default();
    let mut ends = End::pair(now)?;
    let (asked, there) = carry(&mut ends, &mut now, 0, request, *lost)?;
    assert!(asked == request && ends[1].holds(RECEIVED, request)?);
    let reply = handle(&asked);
    let (answered, back) = carry(&mut ends, &mut now, 1, &reply, *lost)?;
    assert_eq!(answered, reply);
    Ok(there + back)
}

/// Runs random inputs twice each, and returns how many packets one round of them took.
fn random_inputs(executions: u32) -> Result<u32> {
    let (mut rng, mut packets) = (Rng::new(1), 0);
    for _ in 0..executions {
        let data: Vec<u8> = (0..rng.next_u64() % 150).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
        let count = one_input(&data)?;
        assert_eq!(count, one_input(&data)?, "the same input gives the same packets");
        packets += count;
    }
    Ok(packets)
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
    let began = Moment::now();
    let packets = random_inputs(EXECUTIONS)?;
    let rate = f64::from(2 * EXECUTIONS) / began.elapsed().as_secs_f64();
    println!("{EXECUTIONS} inputs twice, {packets} packets, {rate:.0} executions/s");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two packets for the request and two for the reply are the least.
    #[test]
    fn random_inputs_run_twice_and_lose_packets() {
        assert!(random_inputs(1000).unwrap() > 6000);
    }

    /// A request of two fields, whose reply has them in the opposite order.
    #[test]
    fn lost_packets_are_sent_again() {
        assert_eq!(one_input(b"\0one,two").unwrap(), 4);
        // The request, its acknowledgement, and seven packets one after the other.
        for lost in [&b"\x01one,two"[..], b"\x02one,two", b"\xffone,two"] {
            assert!(one_input(lost).unwrap() > 4, "{lost:?}");
        }
        assert_eq!(one_input(b"").unwrap(), 0);
    }
}
