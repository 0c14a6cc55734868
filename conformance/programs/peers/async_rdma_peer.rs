//! One end of async-rdma, whose connections are made by text over TCP.
//!
//!     async-rdma-peer server ADDRESS          serves one client
//!     async-rdma-peer client ADDRESS COUNT    COUNT rounds, compared by both ends; 0: without end

use std::alloc::Layout;
use std::io;

use async_rdma::{LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaBuilder};

/// Lengths of messages: receive buffers have 512 bytes.
const MESSAGES: [usize; 3] = [1, 100, 512];
/// Lengths of what is written and read.
const RANGES: [usize; 4] = [1, 4096, 65_536, 1 << 20];
/// The GID of IPv4.
const GID_INDEX: usize = 1;
const ROUND: &[u8] = b"round";
const END: &[u8] = b"end";

fn pattern(round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ round) as u8).collect()
}

fn layout(len: usize) -> io::Result<Layout> {
    Layout::array::<u8>(len).map_err(io::Error::other)
}

fn same(what: &str, got: &[u8], wanted: &[u8]) -> io::Result<()> {
    (got == wanted).then_some(()).ok_or_else(|| io::Error::other(format!("{what} of {} bytes differs", wanted.len())))
}

async fn send(rdma: &Rdma, data: &[u8]) -> io::Result<()> {
    let mut buffer = rdma.alloc_local_mr(layout(data.len())?)?;
    buffer.as_mut_slice().copy_from_slice(data);
    rdma.send(&buffer).await
}

async fn serve(rdma: &Rdma) -> io::Result<()> {
    let mut round = 0;
    loop {
        let word = rdma.receive().await?.as_slice().to_vec();
        if word == END {
            return Ok(());
        }
        same("the first message", &word, ROUND)?;
        for len in MESSAGES {
            same("a message", &rdma.receive().await?.as_slice(), &pattern(round, len))?;
        }
        for len in RANGES {
            let written = rdma.receive_local_mr().await?;
            same("a WRITE", &written.as_slice(), &pattern(round, len))?;
            let mut shown = rdma.alloc_local_mr(layout(len)?)?;
            shown.as_mut_slice().copy_from_slice(&pattern(round + 1, len));
            rdma.send_local_mr(shown).await?;
        }
        let swapped = rdma.receive_local_mr().await?;
        same("a compare and swap", &swapped.as_slice(), &(round as u64 + 1).to_le_bytes())?;
        round += 1;
    }
}

async fn run(rdma: &Rdma, count: usize) -> io::Result<()> {
    let mut round = 0;
    while count == 0 || round < count {
        send(rdma, ROUND).await?;
        for len in MESSAGES {
            send(rdma, &pattern(round, len)).await?;
        }
        for len in RANGES {
            let mut there = rdma.request_remote_mr(layout(len)?).await?;
            let mut buffer = rdma.alloc_local_mr(layout(len)?)?;
            buffer.as_mut_slice().copy_from_slice(&pattern(round, len));
            rdma.write(&buffer, &mut there).await?;
            rdma.send_remote_mr(there).await?;
            let shown = rdma.receive_remote_mr().await?;
            rdma.read(&mut buffer, &shown).await?;
            same("a READ", &buffer.as_slice(), &pattern(round + 1, len))?;
        }
        // Memory that is asked for begins as zeros.
        let mut there = rdma.request_remote_mr(Layout::new::<u64>()).await?;
        rdma.atomic_cas(0, round as u64 + 1, &mut there).await?;
        rdma.send_remote_mr(there).await?;
        round += 1;
        println!("done {round}");
    }
    send(rdma, END).await?;
    println!("compared {round}");
    Ok(())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let builder = RdmaBuilder::default().set_gid_index(GID_INDEX);
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", address] => {
            let rdma = builder.listen(address).await?;
            serve(&rdma).await?;
            println!("served");
        }
        ["client", address, count] => {
            let count = count.parse().map_err(io::Error::other)?;
            run(&builder.connect(address).await?, count).await?;
        }
        _ => return Err(io::Error::other("server ADDRESS | client ADDRESS COUNT")),
    }
    Ok(())
}
