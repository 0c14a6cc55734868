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
fn groups_are_made_joined_told_and_left() {
    let mut net = Net::new(&[SOLO, PEER]);
    let gid = gid_of(SOLO);
    let mut wanted = vec![0; 52];
    member::MGID
        .put_slice(&mut wanted, &[0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    member::PORT_GID.put_slice(&mut wanted, &gid);
    member::JOIN_STATE.put(&mut wanted, 1);
    member::Q_KEY.put(&mut wanted, 0x0B1B);
    assert_eq!(
        net.administer(SET, Record::Member as u16, member::JOIN | member::HAS_MGID | member::CREATE, &wanted),
        Err(sa::STATUS_INVALID),
        "a P_Key that the port has not"
    );
    member::P_KEY.put(&mut wanted, 0xFFFF);
    let (record, create) = (Record::Member as u16, member::JOIN | member::HAS_MGID | member::CREATE);
    let join = member::JOIN | member::HAS_MGID;
    assert_eq!(net.administer(SET, record, join, &wanted), Err(sa::STATUS_INSUFFICIENT_COMPONENTS));
    let made = net.administer(SET, record, create, &wanted).unwrap();
    assert_eq!(member::MLID.get(&made[0]), 0xC000);
    net.pass(INTERVAL);
    assert_eq!(net.hosts[1].1.administration.announcements(SOLO).len(), 1, "the other host has heard of it");
    let mut other = wanted.clone();
    member::Q_KEY.put(&mut other, 5);
    assert_eq!(net.administer(SET, record, create, &other), Err(sa::STATUS_INVALID), "another Q_Key");
    assert_eq!(net.administer(sa::METHOD_GET_TABLE, record, 1, &wanted).unwrap().len(), 1);
    assert!(net.administer(sa::METHOD_DELETE, record, join, &wanted).is_ok());
    assert_eq!(net.administer(sa::METHOD_DELETE, record, join, &wanted), Err(sa::STATUS_INVALID));
    let refused = (0..1000_u16).filter(|number| {
        Field::bytes(12, 2).put(&mut wanted, (*number).into());
        net.administer(SET, record, create, &wanted) == Err(sa::STATUS_NO_RESOURCES)
    });
    assert_eq!(refused.count(), 1000 - 256);
}

/// Rate and MTU that a maker or a member asks for: greater or less than, or exactly, a value (IBA 15.2.5.17.2).
#[test]
fn groups_have_the_rate_and_the_mtu_that_are_asked_for() {
    let mut net = Net::new(&[SOLO]);
    let create = member::JOIN | member::HAS_MGID | member::CREATE;
    let (rate, mtu) = ((0b11 << 8, member::RATE), (0b11 << 4, member::MTU));
    let asked = |group, (_, (selector, field)): (u64, (Field, Field)), how, value| {
        let mut wanted = record(group);
        let gid = gid_of(SOLO);
        member::PORT_GID.put_slice(&mut wanted, &gid);
        selector.put(&mut wanted, how);
        field.put(&mut wanted, value);
        wanted
    };
    // Codes: 2 is 2.5 Gb/s, 3 is 10, 7 is 40, the port's; 5 is 5 Gb/s.
    for (group, property, how, value, made) in [
        (1, rate, 0, 3, Some(7)),
        (2, rate, 1, 3, Some(5)),
        (3, rate, 2, 6, Some(6)),
        (4, rate, 3, 0, Some(7)),
        (5, rate, 1, 2, None),
        (6, rate, 0, 7, None),
        (7, rate, 2, 16, None),
        (12, rate, 0, 63, None),
        (8, mtu, 0, 2, Some(5)),
        (9, mtu, 1, 3, Some(2)),
        (10, mtu, 1, 1, None),
        (11, mtu, 0, 5, None),
    ] {
        let (bits, (_, field)) = property;
        let wanted = asked(group, property, how, value);
        let found = net.administer(SET, Record::Member as u16, create | bits, &wanted).map(|made| field.get(&made[0]));
        assert_eq!(found, made.ok_or(sa::STATUS_INVALID), "{group}");
    }
    // Of a group that is there, too: it has a rate of 10 Gb/s and an MTU of 2048.
    tell(&mut net, PEER, &[record(20)]);
    for (property, how, value, joins) in [
        (rate, 0, 2, true),
        (rate, 1, 3, false),
        (rate, 2, 3, true),
        (mtu, 1, 5, true),
        (mtu, 0, 4, false),
        (mtu, 2, 3, false),
        (mtu, 3, 1, true),
    ] {
        let mask = member::JOIN | member::HAS_MGID | property.0;
        let joined = net.administer(SET, Record::Member as u16, mask, &asked(20, property, how, value));
        assert_eq!(joined.is_ok(), joins, "{how} {value}");
    }
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

/// A record of a group as another host may tell it.
fn record(group: u8) -> [u8; 52] {
    let mut record = [0; 52];
    let mgid = [0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, group];
    member::MGID.put_slice(&mut record, &mgid);
    for (field, value) in [
        (member::Q_KEY, 0x0B1B),
        (member::MLID, 0xC001),
        (member::MTU.1, 4),
        (member::RATE.1, 3),
        (member::P_KEY, 0xFFFF),
        (member::JOIN_STATE, 1),
    ] {
        field.put(&mut record, value);
    }
    record
}

/// Tells groups of a host to the first one.
fn tell(net: &mut Net, lid: Lid, records: &[[u8; 52]]) -> Vec<Result<(), Refusal>> {
    let now = net.now;
    let facts = Subnet::new(now, config(lid), 0).own;
    let subnet = &mut net.hosts[0].1;
    subnet.handle_announcement(now, &address(lid), lid, &Announcement::host(&facts)).unwrap();
    let datagrams = records.chunks(3).map(|records| Announcement::groups(records.iter(), lid));
    datagrams.map(|told| subnet.handle_announcement(now, &address(lid), lid, &told)).collect()
}

fn members(net: &mut Net, group: u8) -> Result<usize, u16> {
    net.administer(sa::METHOD_GET_TABLE, Record::Member as u16, 1, &record(group)).map(|found| found.len())
}

/// A join of the own port with nothing but the MGID.
fn join(net: &mut Net, group: u8) -> Result<Vec<u8>, u16> {
    let mut wanted = record(group);
    let gid = gid_of(SOLO);
    member::PORT_GID.put_slice(&mut wanted, &gid);
    let joined = net.administer(SET, Record::Member as u16, member::JOIN | member::HAS_MGID, &wanted)?;
    Ok(joined[0][..52].to_vec())
}

#[test]
fn groups_of_others_age_and_no_host_fills_the_table() {
    let mut net = Net::new(&[SOLO]);
    let groups: Vec<_> = (0..=255).map(record).collect();
    let told = tell(&mut net, PEER, &groups);
    assert_eq!((told[0], told[30]), (Ok(()), Err(Refusal::Full)));
    let all =
        |net: &mut Net| net.administer(sa::METHOD_GET_TABLE, Record::Member as u16, 0, &[]).map(|found| found.len());
    assert_eq!(all(&mut net), Ok(64));
    assert_eq!(tell(&mut net, Lid(3), &groups[..3]), [Ok(())], "there is room for another host");
    for host in 4..100 {
        tell(&mut net, Lid(host), &groups);
    }
    assert_eq!(all(&mut net), Ok(4096));
    assert!(join(&mut net, 0).is_ok(), "and for the own port");
    assert!(
        net.administer(SET, Record::Member as u16, member::JOIN | member::HAS_MGID, &{
            let mut other = record(1);
            let gid = gid_of(PEER);
            member::PORT_GID.put_slice(&mut other, &gid);
            other
        })
        .is_err(),
        "nobody joins for another host"
    );
    // The host is still there, but tells of one group only.
    for _ in 0..5 {
        net.pass(INTERVAL);
        assert_eq!(tell(&mut net, PEER, &groups[7..8]), [Ok(())]);
    }
    assert_eq!((members(&mut net, 7), members(&mut net, 8), members(&mut net, 0)), (Ok(1), Ok(0), Ok(1)));
    assert!(tell(&mut net, PEER, &groups[..60]).iter().all(Result::is_ok), "its share is its own again");
}

/// A host that announces a group which nobody else can be in keeps nobody from making it.
#[test]
fn groups_of_other_partitions_keep_nobody_out() {
    let create = member::JOIN | member::HAS_MGID | member::CREATE;
    let own = |group| {
        let mut wanted = record(group);
        let gid = gid_of(SOLO);
        member::PORT_GID.put_slice(&mut wanted, &gid);
        wanted
    };
    for (group, (field, value)) in (1..).zip([(member::P_KEY, 0x8001), (member::Q_KEY, 0x8000_0001)]) {
        let mut net = Net::new(&[SOLO]);
        let mut foreign = record(group);
        field.put(&mut foreign, value);
        assert_eq!(tell(&mut net, PEER, &[foreign]), [Ok(())]);
        let made = net.administer(SET, Record::Member as u16, create, &own(group)).unwrap();
        assert_eq!(field.get(&made[0]), field.get(&record(group)), "as its maker wants it");
        assert!(join(&mut net, group).is_ok(), "once more");
        // Nor does anybody make a group that others are kept out of.
        let mut controlled = own(group + 10);
        field.put(&mut controlled, value);
        assert_eq!(net.administer(SET, Record::Member as u16, create, &controlled), Err(sa::STATUS_INVALID));
    }
}

/// Groups of a host that is alone are announced seldom: another process has them when it becomes the owner of the address, and
/// so has one that is the owner no more.
#[test]
fn groups_of_the_port_outlive_the_owner() {
    let mut net = Net::new(&[SOLO]);
    let (now, other) = (net.now, 1);
    net.hosts.push((SOLO, Subnet::new(now, config(SOLO), 9 << 32)));
    let create = member::JOIN | member::HAS_MGID | member::CREATE;
    let mut wanted = record(7);
    let gid = gid_of(SOLO);
    member::PORT_GID.put_slice(&mut wanted, &gid);
    net.administer(SET, Record::Member as u16, create, &wanted).unwrap();
    let known = |net: &mut Net, number: usize| {
        let (now, subnet) = (net.now, &mut net.hosts[number].1);
        subnet.handle_timeout(now);
        subnet.administration.announcements(SOLO).len()
    };
    for _ in 0..6 {
        net.pass(Duration::from_secs(4));
        assert_eq!((known(&mut net, 0), known(&mut net, other)), (1, 1));
    }
    // It ages what another host tells.
    assert_eq!(tell(&mut net, PEER, &[record(9)]), [Ok(())]);
    for (old, new) in [(0, other), (other, 0)] {
        let now = net.now;
        net.hosts[old].1.set_owner(now, false);
        net.pass(Duration::from_secs(4));
        assert_eq!((known(&mut net, old), known(&mut net, new)), (1, 1), "nobody is the owner");
        let now = net.now;
        net.hosts[new].1.set_owner(now, true);
        net.pass(Duration::from_secs(20));
        assert_eq!((known(&mut net, old), known(&mut net, new)), (1, 1));
    }
    let now = net.now;
    net.hosts[0].1.set_owner(now, false);
    net.pass(Duration::from_secs(30));
    assert_eq!(known(&mut net, other), 0, "they end with the programs of the host");
}

#[test]
fn groups_are_followed_that_the_port_can_follow() {
    let mut net = Net::new(&[SOLO]);
    let with = |group, field: Field, value| {
        let mut record = record(group);
        field.put(&mut record, value);
        record
    };
    for (number, (field, value)) in (1..).zip([
        (member::MTU.1, 0),
        (member::MTU.1, 6),
        (member::RATE.1, 1),
        (member::RATE.1, 60),
        (member::MLID, 2),
        (member::MLID, 0xFFFF),
        (member::P_KEY, 0x8000),
        (member::JOIN_STATE, 0),
    ]) {
        assert_eq!(tell(&mut net, PEER, &[with(number, field, value)]), [Err(Refusal::Lie)], "{field:?} {value}");
        assert_eq!(members(&mut net, number), Ok(0));
    }
    // Groups that there can be, but which are not for this port, or not for everybody: the latter are none here.
    let (too_fast, none) = (sa::STATUS_INVALID, sa::STATUS_INSUFFICIENT_COMPONENTS);
    for (number, (field, value, refused)) in
        (11..).zip([(member::RATE.1, 10, too_fast), (member::P_KEY, 0x8001, none), (member::Q_KEY, 0x8000_0001, none)])
    {
        assert_eq!(tell(&mut net, PEER, &[with(number, field, value)]), [Ok(())]);
        assert_eq!(join(&mut net, number), Err(refused), "{field:?} {value}");
        assert_eq!(tell(&mut net, Lid(9), &[record(number)]), [Ok(())]);
        assert_eq!(field.get(&join(&mut net, number).unwrap()), field.get(&record(number)), "as the other member");
    }
    // One liar with the lowest LID is not the model where others agree.
    tell(&mut net, PEER, &[with(20, member::Q_KEY, 0x666)]);
    for host in [Lid(8), Lid(9)] {
        assert_eq!(tell(&mut net, host, &[record(20)]), [Ok(())]);
    }
    let joined = join(&mut net, 20).unwrap();
    assert_eq!(member::Q_KEY.get(&joined), 0x0B1B);
    assert_eq!(member::PORT_GID.slice(&joined)[8..], guid(SOLO).to_be_bytes());
    // Records say whose they are, whatever their sender says.
    let found = net.administer(sa::METHOD_GET_TABLE, Record::Member as u16, 1, &record(20)).unwrap();
    let guids = [SOLO, PEER, Lid(8), Lid(9)].map(|lid| guid(lid).to_be_bytes());
    assert!(found.iter().map(|record| &member::PORT_GID.slice(record)[8..]).eq(guids.iter().map(|guid| &guid[..])));
}

/// Programs of a host have one address: a subscription ends with the last of them, or with its queue pair.
#[test]
fn subscriptions_are_counted() {
    let mut net = Net::new(&[SOLO]);
    let subscribe = |net: &mut Net, begins: u64, qpn: u64| {
        let mut inform = vec![0; 36];
        sa::inform::SUBSCRIBE.put(&mut inform, begins);
        sa::inform::TRAP.put(&mut inform, notice::IN_SERVICE);
        sa::inform::QPN.put(&mut inform, qpn);
        net.administer(SET, sa::INFORM_INFO, 0, &inform).map(|_| ())
    };
    let reports = |net: &mut Net| {
        let subnet = &mut net.hosts[0].1;
        subnet.report(notice::IN_SERVICE, &gid_of(Lid(5)));
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
    for qpn in [1, 1, 7] {
        subscribe(&mut net, 1, qpn).unwrap();
    }
    assert_eq!(told(&mut net), [1, 7]);
    subscribe(&mut net, 0, 1).unwrap();
    assert_eq!(told(&mut net), [1, 7], "one of two has ended");
    subscribe(&mut net, 0, 1).unwrap();
    assert_eq!(told(&mut net), [7], "the other queue pair's goes on");
    assert_eq!(subscribe(&mut net, 0, 1), Err(sa::STATUS_INVALID));
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
        let told = Announcement::host(&facts);
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
