//! Subnet administration.

use super::*;

#[test]
fn paths_nodes_and_ports() {
    let mut net = Net::new(&[SOLO, PEER, FAR]);
    let gid = |lid| gid_of(lid);
    let mut wanted = vec![0; 64];
    path::SGID.put_slice(&mut wanted, &gid(SOLO));
    path::DGID.put_slice(&mut wanted, &gid(FAR));
    let found = net.administer(GET, Record::Path as u16, 0b1100, &wanted).unwrap();
    assert_eq!((path::DLID.get(&found[0]), path::SLID.get(&found[0])), (FAR.0.into(), 1));
    assert_eq!((path::MTU.1.get(&found[0]), path::RATE.1.get(&found[0])), (5, 7));
    assert_eq!(net.administer(sa::METHOD_GET_TABLE, Record::Path as u16, 0b1000, &wanted).unwrap().len(), 6);
    path::NUMBER.put(&mut wanted, 1);
    let each = net.administer(sa::METHOD_GET_TABLE, Record::Path as u16, 1 << 12 | 0b1000, &wanted).unwrap();
    assert_eq!(each.len(), 6, "one to each end");
    path::DGID.put_slice(&mut wanted, &[9; 16]);
    assert_eq!(net.administer(GET, Record::Path as u16, 0b1100, &wanted), Err(sa::STATUS_NO_RECORDS));
    assert_eq!(net.administer(sa::METHOD_GET_TABLE, Record::Node as u16, 0, &[]).unwrap().len(), 6);
    let mut wanted = vec![0; 108];
    sa::LID.put(&mut wanted, PEER.0.into());
    let nodes = net.administer(GET, Record::Node as u16, 1, &wanted).unwrap();
    assert_eq!(node_info::NODE_GUID.moved(4).get(&nodes[0]), guid(PEER));
    assert_eq!(net.administer(GET, Record::Node as u16, 0, &wanted), Err(sa::STATUS_TOO_MANY_RECORDS));
    let ports = net.administer(sa::METHOD_GET_TABLE, Record::PortInfo as u16, 0, &[]).unwrap();
    assert_eq!(ports.len(), 3 + 2 * (usize::from(UPLINK) + 1) + usize::from(Switch::Spine.ports()) + 1);
    assert_eq!(net.administer(sa::METHOD_GET_TABLE, Record::Link as u16, 0, &[]).unwrap().len(), 3 * 2 + 4);
    assert_eq!(net.administer(GET, 0x99, 0, &[]), Err(Mad::STATUS_BAD_METHOD_ATTRIBUTE));
    // Groups of UD, and neither traps nor notices of this class.
    assert_eq!(net.administer(GET, sa::CLASS_PORT_INFO, 0, &[]).unwrap()[0][..4], [1, 2, 0x02, 0x00]);
    assert_eq!(net.administer(GET, sa::NOTICE, 0, &[]), Err(Mad::STATUS_BAD_METHOD_ATTRIBUTE));
}

#[test]
fn paths_between_several_ends() {
    let mut net = Net::new(&[SOLO, PEER, FAR]);
    let multi = sa::METHOD_GET_MULTI;
    let wanted = |sources: &[Lid], destinations: &[Lid]| {
        let mut wanted = vec![0; sa::multi_path::GIDS];
        sa::multi_path::SOURCES.put(&mut wanted, sources.len() as u64);
        sa::multi_path::DESTINATIONS.put(&mut wanted, destinations.len() as u64);
        for lid in sources.iter().chain(destinations) {
            wanted.extend(gid_of(*lid));
        }
        wanted
    };
    let needed = sa::multi_path::NEEDED;
    let found = net.administer(multi, sa::MULTI_PATH, needed, &wanted(&[SOLO, PEER], &[FAR, SOLO])).unwrap();
    let ends: Vec<_> = found.iter().map(|found| (path::SLID.get(found), path::DLID.get(found))).collect();
    assert_eq!(ends, [(1, FAR.0.into()), (1, 1), (2, FAR.0.into()), (2, 1)]);
    // MTU: exactly 1024, and less than 4096 is no path; exactly 4096 is.
    for (mtu, count) in [(0x83, 0), (0x45, 0), (0x85, 1)] {
        let mut asked = wanted(&[SOLO], &[PEER]);
        asked[10] = mtu;
        let found = net.administer(multi, sa::MULTI_PATH, needed | 0b11 << 10, &asked).unwrap();
        assert_eq!(found.len(), count, "{mtu:#x}");
    }
    for (mask, asked, refused) in [
        (1 << 19, wanted(&[SOLO], &[PEER]), sa::STATUS_INSUFFICIENT_COMPONENTS),
        (needed, wanted(&[SOLO], &[]), sa::STATUS_INSUFFICIENT_COMPONENTS),
        (needed, wanted(&[SOLO], &[Lid(9)]), sa::STATUS_INVALID_GID),
    ] {
        assert_eq!(net.administer(multi, sa::MULTI_PATH, mask, &asked), Err(refused));
    }
    let mut lies = wanted(&[SOLO], &[PEER]);
    for count in [12, 0xFF] {
        sa::multi_path::DESTINATIONS.put(&mut lies, count);
        assert_eq!(net.administer(multi, sa::MULTI_PATH, needed, &lies), Err(sa::STATUS_INVALID));
    }
    assert_eq!(net.administer(GET, sa::MULTI_PATH, needed, &lies), Err(Mad::STATUS_BAD_METHOD_ATTRIBUTE));
    assert_eq!(net.administer(multi, Record::Path as u16, 0, &[]), Err(Mad::STATUS_BAD_METHOD_ATTRIBUTE));
    // Not supported, and said so.
    assert_eq!(net.administer(sa::METHOD_GET_TRACE_TABLE, 0x39, 0, &[]), Err(Mad::STATUS_BAD_METHOD));
}

#[test]
fn services_and_reports() {
    let mut net = Net::new(&[SOLO, PEER]);
    let mut wanted = vec![0; 176];
    sa::service::ID.put(&mut wanted, 7);
    sa::service::LEASE.put(&mut wanted, 2);
    sa::service::KEY.put_slice(&mut wanted, &[9; 16]);
    let service = Record::Service as u16;
    assert_eq!(net.administer(SET, service, 1, &wanted), Err(sa::STATUS_INSUFFICIENT_COMPONENTS));
    let registered = net.administer(SET, service, 0b10011, &wanted).unwrap();
    assert_eq!(sa::service::KEY.slice(&registered[0][..176]), [0; 16], "keys are told to nobody");
    assert_eq!(net.administer(GET, service, 1 << 5, &wanted).map(|found| found.len()), Ok(1), "but compared");
    let mut other = wanted.clone();
    sa::service::KEY.put_slice(&mut other, &[8; 16]);
    assert_eq!(net.administer(GET, service, 1 << 5, &other), Err(sa::STATUS_NO_RECORDS));
    assert_eq!(net.administer(GET, service, 1, &wanted).unwrap()[0][..8], wanted[..8]);
    net.pass(Duration::from_secs(3));
    assert_eq!(net.administer(GET, service, 1, &wanted), Err(sa::STATUS_NO_RECORDS), "its lease is over");
    let mut inform = vec![0; 36];
    sa::inform::SUBSCRIBE.put(&mut inform, 1);
    sa::inform::TRAP.put(&mut inform, notice::IN_SERVICE);
    sa::inform::QPN.put(&mut inform, 1);
    net.administer(SET, sa::INFORM_INFO, 0, &inform).unwrap();
    let now = net.now;
    let mut late = Subnet::new(now, config(FAR), 9 << 32);
    late.set_owner(now, true);
    net.hosts.push((FAR, late));
    net.messages.clear();
    net.pass(READY);
    let (number, report) = net.messages.first().expect("a report");
    assert_eq!((*number, report[3]), (0, Mad::METHOD_REPORT));
    assert_eq!(report[sa::DATA + 16 + 8..sa::DATA + 32], guid(FAR).to_be_bytes());
}

/// Programs of a host have one address: a subscription ends with the last of them, or with its queue pair.
#[test]
fn subscriptions_end_with_their_programs() {
    let mut net = Net::new(&[SOLO]);
    let subscribe = |net: &mut Net, program: u64, begins: u64, qpn: u64| {
        let mut message = vec![0; MAD_LEN];
        let header = header(Mad::CLASS_SUBN_ADM, SET, sa::INFORM_INFO, 0);
        Mad { transaction_id: program << 32 | 1, class_version: sa::VERSION, ..header }
            .emit(message.first_chunk_mut().unwrap());
        let inform = &mut message[sa::DATA..];
        sa::inform::SUBSCRIBE.put(inform, begins);
        sa::inform::TRAP.put(inform, notice::IN_SERVICE);
        sa::inform::QPN.put(inform, qpn);
        let now = net.now;
        net.messages.clear();
        net.hosts[0].1.handle_administration(now, &address(SOLO), SOLO, message).unwrap();
        net.carry();
        sa::response(&net.messages.pop().unwrap().1).map(|_| ())
    };
    let reports = |net: &mut Net| {
        let subnet = &mut net.hosts[0].1;
        subnet.report(notice::IN_SERVICE, Gid::new(gid_of(Lid(5))));
        core::iter::from_fn(|| subnet.poll_output())
            .filter_map(|output| match output {
                Output::Message(to, message, Some(_)) => {
                    Some((to.qpn.get(), Mad::parse(message.first_chunk()?)?.transaction_id))
                }
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let told = |net: &mut Net| reports(net).into_iter().map(|(qpn, _)| qpn).collect::<Vec<_>>();
    for (program, qpn) in [(5, 1), (5, 1), (6, 1), (5, 7)] {
        subscribe(&mut net, program, 1, qpn).unwrap();
    }
    assert_eq!(told(&mut net), [1, 7]);
    subscribe(&mut net, 5, 0, 1).unwrap();
    assert_eq!(told(&mut net), [1, 7], "the other program's goes on");
    subscribe(&mut net, 6, 0, 1).unwrap();
    assert_eq!(told(&mut net), [7], "the other queue pair's goes on");
    assert_eq!(subscribe(&mut net, 5, 0, 1), Err(sa::STATUS_INVALID));
    let [(7, transaction_id)] = reports(&mut net)[..] else { panic!("one report") };
    net.hosts[0].1.report_timed_out(0xABCD << 32 | transaction_id);
    assert_eq!(told(&mut net), [], "nobody has answered");
}

/// A table of every switch's every block is too much: it is not built to be cut.
#[test]
fn tables_of_a_large_subnet() {
    let mut net = Net::new(&[SOLO]);
    let now = net.now;
    for lid in (2..0xBF00).step_by(48).map(Lid) {
        let facts = Subnet::new(now, config(lid), 0).own;
        let told = Announcement::host(&facts, 1);
        net.hosts[0].1.handle_announcement(now, &address(lid), lid, &told).unwrap();
    }
    let table = Record::LinearForwarding as u16;
    assert_eq!(net.administer(sa::METHOD_GET_TABLE, table, 0, &[]), Err(sa::STATUS_NO_RESOURCES));
    let mut wanted = vec![0; 72];
    sa::LID.put(&mut wanted, LEAF.0.into());
    let of_leaf = net.administer(sa::METHOD_GET_TABLE, table, 1, &wanted).unwrap();
    assert_eq!(of_leaf.len(), 0xBF00 / 64 + 4);
    for (block, entry, port) in [(0, 2, 2), (0, 3, 0xFF), (0, 50, 50), (0xBF00 / 64, 0, 0), (0xBF00 / 64, 1, UPLINK)] {
        sa::BLOCK.put(&mut wanted, block);
        let [found] = &net.administer(sa::METHOD_GET_TABLE, table, 0b11, &wanted).unwrap()[..] else { panic!("one") };
        assert_eq!(found[8 + entry], port, "{block} {entry}");
    }
}

/// Records of tables, and who may see which.
#[test]
fn tables_and_keys() {
    let mut net = Net::new(&[SOLO, PEER]);
    let table = sa::METHOD_GET_TABLE;
    let p_keys = Record::PKeyTable as u16;
    assert_eq!(net.administer(table, p_keys, 0, &[]), Err(sa::STATUS_INVALID), "without a key");
    let trusted = net.administer_with_key(sa::DEFAULT_SM_KEY, table, p_keys, 0, &[]);
    assert_eq!(trusted.map(|found| found.map(|found| found.len())), Some(Ok(3)));
    assert_eq!(net.administer_with_key(9999, table, Record::Node as u16, 0, &[]), None, "with a wrong key");
    let now = net.now;
    let mut message = vec![0; MAD_LEN];
    header(Mad::CLASS_SUBN_ADM, GET, Record::Node as u16, 0).emit(message.first_chunk_mut().unwrap());
    message[2] = sa::VERSION;
    sa::SM_KEY.put(&mut message, 9999);
    let refused = net.hosts[0].1.handle_administration(now, &address(SOLO), SOLO, message);
    assert_eq!(refused, Err(Refusal::Key));
    // Two hosts: one way each; the switch has three ports with a neighbour, its own included.
    assert_eq!(net.administer(table, Record::SlToVl as u16, 0, &[]).unwrap().len(), 2 + 3 * 3);
    assert_eq!(net.administer(table, Record::VlArbitration as u16, 0, &[]).unwrap().len(), (2 + 3) * 4);
    let mut wanted = vec![0; 16];
    sa::LID.put(&mut wanted, PEER.0.into());
    let one = net.administer(table, Record::SlToVl as u16, 1, &wanted).unwrap();
    assert_eq!((one.len(), sa::PORTS.1.get(&one[0])), (1, 1));
    // The port of an adapter may be called 0, and those of a switch be asked for that nothing hangs on.
    for (lid, from, to, count) in
        [(PEER, 0, 0, 1), (PEER, 2, 1, 0), (LEAF, 0, 0, 1), (LEAF, 200, 241, 1), (LEAF, 1, 242, 0)]
    {
        sa::LID.put(&mut wanted, lid.0.into());
        sa::PORTS.0.put(&mut wanted, from);
        sa::PORTS.1.put(&mut wanted, to);
        let found = net.administer(table, Record::SlToVl as u16, 0b111, &wanted).unwrap();
        assert_eq!(found.len(), count, "{lid} {from} {to}");
    }
    let all = net.administer(table, Record::Path as u16, 0, &[]).unwrap();
    assert_eq!(all.len(), 3 * 3, "between each two of two hosts and a switch");
    assert_eq!(net.administer(table, Record::MulticastForwarding as u16, 0, &[]), Ok(vec![]), "no groups");
    let mut inform = vec![0; 36];
    sa::inform::SUBSCRIBE.put(&mut inform, 1);
    sa::inform::TRAP.put(&mut inform, 0x1234);
    net.administer(SET, sa::INFORM_INFO, 0, &inform).unwrap();
    let all = net.administer(table, Record::InformInfo as u16, 0, &[]).unwrap();
    assert_eq!((all.len(), &all[0][..16], &all[0][24..60]), (1, &gid_of(SOLO)[..], &inform[..]));
    let mut wanted = vec![0; 60];
    sa::inform::NUMBER.put(&mut wanted, 1);
    assert_eq!(net.administer(table, Record::InformInfo as u16, 0b10, &wanted), Ok(vec![]));
    assert_eq!(net.administer(SET, Record::InformInfo as u16, 0, &wanted), Err(Mad::STATUS_BAD_METHOD_ATTRIBUTE));
}
