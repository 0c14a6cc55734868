use urxe_wire::cm::{CommId, Dreq, Rej, RejReason, Rejected};

use super::*;

fn peer(address: IpAddr, wait: Duration, private_data: &[u8]) -> Peer<'static> {
    let (transport, mtu) = (Transport::Rc, Mtu::Mtu1024);
    let settings =
        crate::peer::Settings { address, transport, mtu, seed: 1, wait, private_data: private_data.to_vec() };
    Peer::new(settings, Box::new(|_, _| {})).unwrap()
}

#[test]
fn private_data_has_room_or_is_refused() {
    let server = SocketAddr::new("127.99.8.7".parse().unwrap(), 7471);
    let data: Vec<u8> = (1..=56).collect();
    let mut peer = peer("127.99.8.6".parse().unwrap(), Duration::ZERO, &data);
    assert!(matches!(peer.cm_connect(server, Duration::ZERO), Err(Error::Silent(..))));
    // A reply has more room: it has no header of IP addresses.
    assert_eq!(peer.reply().unwrap().private_data[..57], [&data[..], &[0]].concat());
    peer.settings.private_data.push(0);
    assert!(peer.reply().is_ok());
    peer.renew(1);
    let refused = peer.cm_connect(server, Duration::ZERO);
    assert!(matches!(refused, Err(Error::Invalid(why)) if why.contains("57 bytes of private data, of which 56")));
    peer.settings.private_data.resize(197, 0);
    assert!(peer.reply().is_err());
}

#[test]
fn each_connection_has_a_name_and_a_ca_of_its_own() {
    let address = "127.99.8.1".parse().unwrap();
    let mut peer = peer(address, Duration::ZERO, &[]);
    let gid = Gid::from(address);
    let names: std::collections::HashSet<_> = (0..400)
        .map(|count| {
            peer.renew(count);
            let req = peer.request(1, [0; 92], gid, gid);
            (req.local_id.0, req.ca_guid)
        })
        .collect();
    assert_eq!(names.len(), 400);
}

#[test]
fn listeners_without_client_give_up() {
    let address = "127.99.8.2".parse().unwrap();
    let wait = Duration::from_millis(10);
    let mut peer = peer(address, wait, &[]);
    for handshake in [Handshake::CmListen(7471), Handshake::PingPongListen(0)] {
        assert!(matches!(peer.shake(handshake, 0, wait), Err(Error::Silent(..))), "{handshake:?}");
    }
}

#[test]
fn datagrams_of_others_are_not_the_connections() {
    let address = "127.99.8.3".parse().unwrap();
    let wait = Duration::ZERO;
    let mut peer = peer(address, wait, &[]);
    let (server, other) = ("127.99.8.4".parse().unwrap(), "127.99.8.5".parse().unwrap());
    let _ = peer.cm_connect(SocketAddr::new(server, 7471), Duration::ZERO);
    let reject = CmMad {
        transaction_id: 1,
        attribute_modifier: 0,
        message: Message::Rej(Rej {
            ids: Ids { local: CommId(9), remote: peer.comm_id },
            message: Rejected::Req,
            info_len: 0,
            reason: RejReason::CONSUMER_DEFINED,
            info: [0; 72],
            private_data: [0; 148],
        }),
    };
    peer.take_cm(other, &reject.to_bytes()).unwrap();
    assert!(peer.cm.poll_event().is_none());
    peer.take_cm(server, &reject.to_bytes()).unwrap();
    assert!(matches!(peer.cm.poll_event(), Some((_, Event::Rejected(_)))));
}

/// A program that accepts and ends at once, so that both datagrams are there when the first is looked at, is tried again by campaigns.
#[test]
fn a_connection_that_is_over_already_is_refused() {
    let (address, server) = ("127.99.8.10".parse().unwrap(), "127.99.8.11".parse().unwrap());
    let mut peer = peer(address, Duration::ZERO, &[]);
    let _ = peer.cm_connect(SocketAddr::new(server, 7471), Duration::ZERO);
    let ids = Ids { local: CommId(9), remote: peer.comm_id };
    let rep = Rep { ids, qpn: Qpn::new(0x123), ..peer.reply().unwrap() };
    let dreq = Dreq { ids, remote_qpn: peer.qpn, private_data: [0; 220] };
    for message in [Message::Rep(rep), Message::Dreq(dreq)] {
        let mad = CmMad { transaction_id: 1, attribute_modifier: 0, message };
        peer.take_cm(server, &mad.to_bytes()).unwrap();
    }
    let Some((_, Event::Reply(rep))) = peer.cm.poll_event() else { panic!("no reply") };
    assert!(matches!(peer.replied(server, &rep), Err(Error::Refused(_))));
}

#[test]
fn lines_of_ping_pongs() {
    let target = parse_line(b"0000:000123:abcdef:00000000000000000000ffff7f000001\0").unwrap();
    assert_eq!((target.qpn.get(), target.psn.get()), (0x123, 0xAB_CDEF));
    assert_eq!(target.address, "127.0.0.1".parse::<IpAddr>().unwrap());
    for line in ["", "0000:000123:abcdef", "0000:x:1:00000000000000000000ffff7f000001", "0:1:2:ff"] {
        assert_eq!(parse_line(line.as_bytes()), None, "{line}");
    }
}
