use std::sync::mpsc;

use super::*;

fn peer(address: &str) -> Peer<'static> {
    let settings = Settings {
        address: address.parse().unwrap(),
        transport: Transport::Rc,
        mtu: Mtu::Mtu1024,
        seed: 1,
        wait: Duration::ZERO,
        private_data: Vec::new(),
    };
    Peer::new(settings, Box::new(|_, _| {})).unwrap()
}

/// A Last without a First ends the queue pair: receives that are posted to it from then on complete at once.
#[test]
fn packets_to_a_failed_queue_pair_are_taken() {
    // A failing test fails, and does not wait for a thread that never ends.
    let (said, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut own, mut other) = (peer("127.99.8.8"), peer("127.99.8.9"));
        let target = |of: &Peer<'_>| Target { address: of.settings.address, qpn: of.qpn, psn: of.first_psn };
        let (here, there) = (target(&own), target(&other));
        own.connect(there).unwrap();
        other.connect(here).unwrap();
        let last = other.build(Operation::SendLast, Ext::None, other.psn, b"no message").unwrap();
        // The first is answered, however late the system delivers that; nothing comes after the second.
        let syndromes = [60_000, 20].map(|timeout| {
            other.send(&last, 0).unwrap();
            own.receive(Moment::now() + Duration::from_secs(60)).unwrap().unwrap();
            let answer = other.receive(Moment::now() + Duration::from_millis(timeout)).unwrap();
            answer.and_then(|arrived| arrived.acknowledgement()).map(|(_, syndrome)| syndrome)
        });
        said.send(syndromes).unwrap();
    });
    let syndromes = heard.recv_timeout(Duration::from_secs(120)).expect("taking a packet ends");
    // In ERR packets are dropped.
    assert!(matches!(syndromes, [Some(Syndrome::Nak(_)), None]), "{syndromes:?}");
}
