//! Multicast groups.

use super::*;
use crate::subnet::announcement::{GroupKind, ToldGroup};

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
    assert_eq!(net.hosts[1].1.administration.told_groups(SOLO).len(), 1, "the other host has heard of it");
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

/// A record of a group as another host may tell it.
pub(super) fn record(group: u8) -> [u8; 52] {
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
    subnet.handle_announcement(now, &address(lid), lid, &Announcement::host(&facts, 1)).unwrap();
    let told: Vec<_> = records.iter().map(|record| ToldGroup { record: *record, kind: GroupKind::OfPort }).collect();
    let datagrams = told.chunks(3).map(|some| Announcement::groups(some, lid));
    datagrams.map(|told| subnet.handle_announcement(now, &address(lid), lid, &told)).collect()
}

fn members(net: &mut Net, group: u8) -> Result<usize, u16> {
    net.administer(sa::METHOD_GET_TABLE, Record::Member as u16, 1, &record(group)).map(|found| found.len())
}

/// Components of a join that names the Q_Key.
const fn join_with_key() -> u64 {
    member::JOIN | member::HAS_MGID | 1 << 2
}

/// A join of the own port with nothing but the MGID.
fn join(net: &mut Net, group: u8) -> Result<Vec<u8>, u16> {
    let mut wanted = record(group);
    let gid = gid_of(SOLO);
    member::PORT_GID.put_slice(&mut wanted, &gid);
    let joined = net.administer(SET, Record::Member as u16, member::JOIN | member::HAS_MGID, &wanted)?;
    Ok(joined[0][..52].to_vec())
}

/// Makes a group that the own port is in.
fn join_made(net: &mut Net, group: u8) {
    let mut wanted = record(group);
    member::PORT_GID.put_slice(&mut wanted, &gid_of(SOLO));
    let create = member::JOIN | member::HAS_MGID | member::CREATE;
    net.administer(SET, Record::Member as u16, create, &wanted).unwrap();
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

/// A process that has just begun knows the groups of the hosts that answer it, as soon as it knows that these are all.
#[test]
fn groups_are_known_from_the_start() {
    let mut net = Net::new(&[SOLO, PEER]);
    for group in 0..7 {
        join_made(&mut net, group);
    }
    // Not a moment to hear announcements.
    net.pass(INTERVAL / 2);
    let now = net.now;
    net.hosts.insert(0, (PEER, Subnet::new(now, config(PEER), 9 << 32)));
    net.hosts[0].1.handle_timeout(now);
    net.carry();
    assert!(net.hosts[0].1.is_known(now));
    assert_eq!(net.hosts[0].1.administration.groups_of(SOLO), 7);
    // Nor do many questions cost as many datagrams each.
    let subnet = &mut net.hosts[1].1;
    let mut count = |number: u64| {
        let question = Announcement::question(number << 32);
        let asked = subnet.handle_announcement(now, &address(PEER), PEER, &question);
        (asked, core::iter::from_fn(|| subnet.poll_output()).count())
    };
    let counts: Vec<_> = (0..300).map(&mut count).collect();
    assert_eq!(counts[0], (Ok(()), 5));
    assert!((200..256).contains(&counts.iter().map(|(_, sent)| sent).sum::<usize>()));
    assert_eq!(counts[299], (Err(Refusal::Full), 0));
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
        // A group of another partition is made by nobody; one of privileged programs by those that name its key.
        let mut controlled = own(group + 10);
        field.put(&mut controlled, value);
        let made = net.administer(SET, Record::Member as u16, create, &controlled).map(|_| ());
        assert_eq!(made, if field == member::Q_KEY { Ok(()) } else { Err(sa::STATUS_INVALID) });
    }
    // As ibacm of another host has made its group, it is joined with that key only.
    let mut net = Net::new(&[SOLO]);
    let mut privileged = record(1);
    member::Q_KEY.put(&mut privileged, 0x8001_0000);
    assert_eq!(tell(&mut net, PEER, &[privileged]), [Ok(())]);
    assert_eq!(join(&mut net, 1), Err(sa::STATUS_INSUFFICIENT_COMPONENTS));
    let mut wanted = own(1);
    member::Q_KEY.put(&mut wanted, 0x8001_0000);
    let joined = net.administer(SET, Record::Member as u16, join_with_key(), &wanted).unwrap();
    assert_eq!((member::Q_KEY.get(&joined[0]), member::RATE.1.get(&joined[0])), (0x8001_0000, 3));
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
        subnet.administration.told_groups(SOLO).len()
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

/// Requests of osmtest: who may make which group, and what a maker leaves open.
#[test]
fn groups_that_may_be_made() {
    let mut net = Net::new(&[SOLO]);
    let create = member::JOIN | member::HAS_MGID | member::CREATE;
    let make = |net: &mut Net, mgid: [u8; 16], states: u64, more: u64| {
        let mut wanted = record(1);
        member::MGID.put_slice(&mut wanted, &mgid);
        member::PORT_GID.put_slice(&mut wanted, &gid_of(SOLO));
        member::JOIN_STATE.put(&mut wanted, states);
        // Greater than none: the rate and the MTU have no code.
        for (selector, value) in [member::RATE, member::MTU] {
            selector.put(&mut wanted, 0);
            value.put(&mut wanted, 0);
        }
        net.administer(SET, Record::Member as u16, create | more, &wanted).map(|made| made[0].clone())
    };
    let named =
        |start: [u8; 4], last| [start[0], start[1], start[2], start[3], 0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    for (mgid, states, is_made) in [
        (named([0xFF, 0x12, 0xA0, 0x1C], 1), 1, true),
        (named([0xFF, 0x12, 0xA0, 0x1C], 2), 0xF, true),
        (named([0xFF, 0x12, 0xA0, 0x1C], 3), 8, true),
        (named([0xFF, 0x1F, 0xA0, 0x1C], 1), 1, true),
        (named([0xFF, 0x02, 0, 0], 1), 1, true),
        (named([0xFF, 0x15, 0xA0, 0x1B], 1), 1, true),
        // Neither a full member, nor an MGID, nor known flags, nor a name that is for the administration to give.
        (named([0xFF, 0x12, 0xA0, 0x1C], 4), 2, false),
        (named([0xFF, 0x12, 0xA0, 0x1C], 5), 4, false),
        (named([0xFA, 0x12, 0xA0, 0x1C], 1), 1, false),
        (named([0xFF, 0x22, 0xA0, 0x1C], 1), 1, false),
        (named([0xFF, 0x12, 0xA0, 0x1B], 1), 1, false),
    ] {
        let made = make(&mut net, mgid, states, 0).map(|made| member::JOIN_STATE.get(&made));
        assert_eq!(made, if is_made { Ok(states) } else { Err(sa::STATUS_INVALID) }, "{mgid:x?} {states}");
    }
    let made = make(&mut net, [0; 16], 1, 0b11 << 4 | 0b11 << 8 | 0b11 << 10).unwrap();
    assert_eq!(made[..4], [0xFF, 0x12, 0xA0, 0x1B]);
    let values = [member::MTU.1, member::RATE.1, member::LIFE_TIME.1].map(|field| field.get(&made));
    assert_eq!(values, [5, 7, 18], "the largest that there are");
    // A member of it by its name, which the administration has given.
    let mgid = made[..16].try_into().unwrap();
    assert_eq!(make(&mut net, mgid, 2, 0).map(|made| member::JOIN_STATE.get(&made)), Ok(3));
}

/// Multicast tables follow from the groups, in records and in packets.
#[test]
fn members_are_in_the_multicast_tables() {
    let mut net = Net::new(&[SOLO, FAR]);
    join_made(&mut net, 7);
    tell(&mut net, FAR, &[record(7)]);
    let mlid = u64::from(urxe_wire::mgid::mlid(&Gid::new(record(7)[..16].try_into().unwrap())).0);
    // Both members tell the MLID that follows from the MGID.
    let mut told = record(7);
    member::MLID.put(&mut told, mlid);
    tell(&mut net, FAR, &[told]);
    let tables = net.administer(sa::METHOD_GET_TABLE, Record::MulticastForwarding as u16, 0, &[]).unwrap();
    let (block, entry) = ((mlid - 0xC000) / 32, usize::try_from((mlid - 0xC000) % 32).unwrap());
    let found: Vec<_> = tables
        .iter()
        .map(|table| {
            assert_eq!(sa::MULTICAST_BLOCK.get(table), block);
            (sa::LID.get_u16(table), sa::POSITION.get(table), Field::bytes(8 + entry * 2, 2).get(table))
        })
        .collect();
    // The own host at port 1 and the uplink, which is port 241; the far host at port 21 of its leaf.
    let leaf = 0xBF00;
    assert_eq!(
        found,
        [(leaf, 0, 1 << 1), (leaf, 15, 1 << 1), (leaf + 1, 1, 1 << 5), (leaf + 1, 15, 1 << 1), (0xBFFF, 0, 0b110)]
    );
    let modifier = 15 << 28 | u32::try_from(block).unwrap();
    let table = net.get(&[1], Attribute::MulticastForwarding, modifier);
    assert_eq!(Field::bytes(entry * 2, 2).get(&table), 1 << 1);
    let info = net.get(&[1], Attribute::SwitchInfo, 0);
    assert_eq!(switch_info::MULTICAST_TOP.get(&info), mlid.max(0xC001));
}
