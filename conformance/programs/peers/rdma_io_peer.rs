//! One end of a stream of rdma-io, over the transport named send-recv, credit-ring or read-ring.
//!
//!     rdma-io-peer server TRANSPORT ADDRESS          sends back what comes
//!     rdma-io-peer client TRANSPORT ADDRESS COUNT    COUNT messages, compared; 0: without end

use std::net::SocketAddr;

use futures::io::{AsyncReadExt, AsyncWriteExt};
use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::credit_ring_transport::CreditRingConfig;
use rdma_io::read_ring_transport::ReadRingConfig;
use rdma_io::send_recv_transport::SendRecvConfig;
use rdma_io::transport::TransportBuilder;

const LENGTHS: [usize; 5] = [1, 1000, 65_536, 1 << 20, (1 << 20) + 7];
/// Lengths that fit into one message of the rings. They are for datagrams: a reader of long streams never takes the completions of the
/// credits that it sends.
const DATAGRAMS: [usize; 4] = [1, 100, 1000, 1500];

async fn serve(builder: impl TransportBuilder, address: SocketAddr) {
    let listener = AsyncCmListener::bind(&address).expect("listen");
    println!("listening");
    loop {
        let mut stream = AsyncRdmaStream::new(builder.accept(&listener).await.expect("accept"));
        let mut buffer = vec![0; 1 << 16];
        loop {
            match stream.read(&mut buffer).await {
                Ok(length) if length > 0 => {
                    if stream.write_all(&buffer[..length]).await.is_err() || stream.flush().await.is_err() {
                        break;
                    }
                }
                _ => break,
            }
        }
        println!("end of a client");
    }
}

async fn talk(builder: impl TransportBuilder, address: SocketAddr, lengths: &[usize], count: usize) {
    let stream = AsyncRdmaStream::new(builder.connect(&address).await.expect("connect"));
    let (mut from, mut to) = stream.split();
    let mut number = 0;
    while count == 0 || number < count {
        let length = lengths[number % lengths.len()];
        let data: Vec<u8> = (0..length).map(|at| (at * 31 + number * 7) as u8).collect();
        let mut back = vec![0; length];
        // The echo comes while the rest is sent.
        let (sent, came) = tokio::join!(
            async {
                to.write_all(&data).await?;
                to.flush().await
            },
            from.read_exact(&mut back)
        );
        if let Some(error) = sent.err().or(came.err()) {
            println!("failed: {error}");
            std::process::exit(3);
        }
        assert!(back == data, "message {number} came back otherwise");
        number += 1;
        println!("done {number}");
    }
    println!("compared {number}");
}

async fn run(builder: impl TransportBuilder, lengths: &[usize], words: &[String]) {
    let address = words[3].parse().expect("an address");
    match words[1].as_str() {
        "server" => serve(builder, address).await,
        _ => talk(builder, address, lengths, words[4].parse().expect("a count")).await,
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words[2].as_str() {
        "send-recv" => run(SendRecvConfig::stream(), &LENGTHS, &words).await,
        "credit-ring" => run(CreditRingConfig::datagram(), &DATAGRAMS, &words).await,
        "read-ring" => run(ReadRingConfig::datagram(), &DATAGRAMS, &words).await,
        other => panic!("no transport {other}"),
    }
}
