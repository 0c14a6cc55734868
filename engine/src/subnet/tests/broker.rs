//! Memberships that processes of a host have joined its port to.

use super::groups::record;
use super::*;

const CREATE: u64 = member::JOIN | member::HAS_MGID | member::CREATE;
const LEAVE: u64 = member::JOIN | member::HAS_MGID;

/// Processes of the first host.
const FIRST: u32 = 0x0100_0001;
const SECOND: u32 = 0x0200_0002;

/// A request of a process about a group, with join states.
fn request(process: u32, transaction: u32, method: u8, group: u8, states: u64) -> PortMembership {
    let mut record = record(group);
    member::PORT_GID.put_slice(&mut record, &gid_of(SOLO));
    member::JOIN_STATE.put(&mut record, states);
    let mask = if method == SET { CREATE } else { LEAVE };
    let transaction_id = u64::from(process) << 32 | u64::from(transaction);
    PortMembership { method, status: 0, transaction_id, mask, record }
}

/// Sends a request to the owner of the address; the join state of the answer, its status, or `None` without an answer.
fn ask(net: &mut Net, request: PortMembership) -> Option<Result<u64, u16>> {
    let (now, lid) = (net.now, SOLO);
    net.answered.clear();
    let _ = net.hosts[0].1.handle_announcement(now, &address(lid), lid, &request.to_datagram());
    told(net)
}

/// The answer that a process has got last.
fn told(net: &mut Net) -> Option<Result<u64, u16>> {
    net.carry();
    let answer = net.answered.pop()?;
    Some(if answer.status == 0 { Ok(answer.join_state()) } else { Err(answer.status) })
}

fn join(net: &mut Net, process: u32, transaction: u32, states: u64) -> Option<Result<u64, u16>> {
    ask(net, request(process, transaction, SET, 7, states))
}

fn leave(net: &mut Net, process: u32, transaction: u32, states: u64) -> Option<Result<u64, u16>> {
    ask(net, request(process, transaction, sa::METHOD_DELETE, 7, states))
}

/// Members of the group, by the built-in administration.
fn members(net: &mut Net) -> usize {
    net.administer(sa::METHOD_GET_TABLE, Record::Member as u16, 1, &record(7)).unwrap().len()
}

/// Has a program of the second host be the subnet's manager.
fn with_manager() -> Net {
    let mut net = Net::new(&[SOLO, PEER]);
    let now = net.now;
    port_info::SM_LID.put(&mut net.hosts[1].1.own.port_info, PEER.0.into());
    net.hosts[1].1.set_sm(now, true);
    net.pass(INTERVAL * 2);
    assert_eq!(net.hosts[0].1.sm_lid(), PEER);
    net
}

/// The manager's answer to the request that has been relayed last.
fn answer(net: &mut Net, states: u64) -> Option<Result<u64, u16>> {
    let (0, number, request) = net.relayed.pop().expect("a request to the manager") else {
        panic!("of the first host")
    };
    let mut answer = request;
    member::JOIN_STATE.put(&mut answer[sa::DATA..], states);
    net.answered.clear();
    let now = net.now;
    net.hosts[0].1.handle_relayed(now, number, Some(&answer));
    told(net)
}

#[test]
fn the_port_is_in_a_group_while_a_process_is() {
    let mut net = Net::new(&[SOLO]);
    assert_eq!(join(&mut net, FIRST, 1, 1), Some(Ok(1)));
    assert_eq!(join(&mut net, SECOND, 1, 1), Some(Ok(1)));
    assert_eq!(join(&mut net, SECOND, 2, 8), Some(Ok(9)), "to send as well");
    assert_eq!(members(&mut net), 1);
    assert_eq!(leave(&mut net, FIRST, 2, 4), Some(Err(sa::STATUS_INVALID)), "it is no such member");
    assert_eq!(leave(&mut net, FIRST, 3, 1), Some(Ok(9)), "the other process stays");
    assert_eq!(leave(&mut net, FIRST, 4, 1), Some(Err(sa::STATUS_INVALID)), "once");
    assert_eq!(leave(&mut net, SECOND, 3, 1), Some(Ok(8)));
    assert_eq!((members(&mut net), leave(&mut net, SECOND, 4, 8)), (1, Some(Ok(0))));
    assert_eq!(members(&mut net), 0);
    // Of a group that has no name, nobody could be told.
    let mut unnamed = request(FIRST, 5, SET, 7, 1);
    unnamed.record[..16].fill(0);
    assert_eq!(ask(&mut net, unnamed), Some(Err(sa::STATUS_INVALID)));
}

#[test]
fn processes_that_are_gone_leave() {
    let mut net = Net::new(&[SOLO]);
    for process in [FIRST, SECOND] {
        join(&mut net, process, 1, 1).unwrap().unwrap();
    }
    let gone = |net: &mut Net, process| {
        let now = net.now;
        net.hosts[0].1.process_is_gone(now, AgentId(process));
        net.carry();
        (members(net), net.hosts[0].1.processes_in_groups().map(|process| process.0).collect::<Vec<_>>())
    };
    assert_eq!(gone(&mut net, 0x0300_0003), (1, vec![FIRST, SECOND]));
    assert_eq!(gone(&mut net, FIRST), (1, vec![SECOND]));
    assert_eq!(gone(&mut net, SECOND), (0, vec![]));
}

/// Memberships that programs have asked for by themselves are the port's. They make way for others when their program is gone.
#[test]
fn memberships_of_the_port_make_way() {
    let mut net = Net::new(&[SOLO]);
    for group in 0..=255 {
        let mut wanted = record(group);
        member::PORT_GID.put_slice(&mut wanted, &gid_of(SOLO));
        let joined = net.administer(SET, Record::Member as u16, CREATE, &wanted);
        assert!(joined.is_ok(), "{group}");
    }
    assert_eq!(ask(&mut net, request(FIRST, 1, SET, 7, 1)), Some(Ok(1)), "one more in a group");
    let mut other = request(FIRST, 2, SET, 8, 1);
    other.record[4] = 0x80;
    assert_eq!(ask(&mut net, other), Some(Err(sa::STATUS_NO_RESOURCES)));
    // The agent of `administer`.
    let program = AgentId(0x77);
    assert!(net.hosts[0].1.processes_in_groups().any(|process| process == program));
    let now = net.now;
    net.hosts[0].1.process_is_gone(now, program);
    other.transaction_id += 1;
    assert_eq!(ask(&mut net, other), Some(Ok(1)));
}

#[test]
fn a_program_that_administers_is_asked_by_the_owner() {
    let mut net = with_manager();
    assert_eq!(join(&mut net, FIRST, 1, 1), None, "it is asked");
    assert_eq!(join(&mut net, FIRST, 1, 1), None, "the same request, sent again");
    assert_eq!((net.relayed.len(), join(&mut net, SECOND, 1, 1)), (1, None), "one after the other");
    assert_eq!(answer(&mut net, 1), Some(Ok(1)));
    assert_eq!(net.relayed.len(), 0, "the second one needs no answer");
    assert_eq!(leave(&mut net, FIRST, 2, 1), Some(Ok(1)));
    assert_eq!((leave(&mut net, SECOND, 2, 1), net.relayed.len()), (None, 1), "the last one does");
    assert_eq!(answer(&mut net, 0), Some(Ok(0)));
    // A refusal is the process's; and who has had none asks again.
    assert_eq!(join(&mut net, FIRST, 3, 1), None);
    let (_, number, request) = net.relayed.pop().unwrap();
    let mut refusal = request;
    refusal[4] = 2;
    let now = net.now;
    net.hosts[0].1.handle_relayed(now, number, Some(&refusal));
    assert_eq!(told(&mut net), Some(Err(sa::STATUS_INVALID)));
    assert_eq!(join(&mut net, FIRST, 4, 1), None);
    let (_, number, _) = net.relayed.pop().unwrap();
    net.hosts[0].1.handle_relayed(now, number, None);
    assert_eq!((join(&mut net, FIRST, 5, 1), answer(&mut net, 1)), (None, Some(Ok(1))));
    // Dead processes leave at the program, too.
    net.hosts[0].1.process_is_gone(now, AgentId(FIRST));
    net.carry();
    let (_, _, request) = net.relayed.last().copied().unwrap();
    assert_eq!((request[3], member::JOIN_STATE.get(&request[sa::DATA..])), (sa::METHOD_DELETE, 1));
    assert_eq!(answer(&mut net, 0), None, "nobody waits for that");
    assert_eq!(net.hosts[0].1.processes_in_groups().count(), 0);
}

/// The built-in administration knows nothing of what a program knew: it asks clients to register again.
#[test]
fn another_administration_is_told_anew() {
    let mut net = with_manager();
    join(&mut net, FIRST, 1, 1);
    assert_eq!(answer(&mut net, 1), Some(Ok(1)));
    assert_eq!(net.hosts[1].1.administration.told_groups(SOLO).len(), 0, "other hosts do not count it");
    while net.hosts[0].1.take_event().is_some() {}
    let now = net.now;
    net.hosts[1].1.set_sm(now, false);
    net.pass(INTERVAL * 2);
    let events: Vec<Event> = core::iter::from_fn(|| net.hosts[0].1.take_event()).collect();
    assert_eq!(events, [Event::SubnetManager(LEAF), Event::Reregister]);
    assert_eq!((members(&mut net), net.hosts[0].1.processes_in_groups().count()), (0, 0));
    assert_eq!((join(&mut net, FIRST, 2, 1), members(&mut net)), (Some(Ok(1)), 1));
}

/// Another process that answers for the port hears of its groups; those that no process claims it leaves.
#[test]
fn the_next_owner_leaves_what_nobody_claims() {
    // One announcement tells of both groups: of the first without its PortGID, whose place is that of the LID.
    for (has_manager, claimed, unclaimed) in [(false, 7, 8), (false, 8, 7), (true, 7, 8), (true, 8, 7)] {
        let mut net = if has_manager { with_manager() } else { Net::new(&[SOLO, PEER]) };
        let now = net.now;
        net.hosts.push((SOLO, Subnet::new(now, config(SOLO), 9 << 32)));
        net.pass(INTERVAL);
        for group in [7, 8] {
            let answered = ask(&mut net, request(FIRST, group.into(), SET, group, 1));
            assert_eq!(answered.or_else(|| answer(&mut net, 1)), Some(Ok(1)));
        }
        net.pass(INTERVAL);
        assert!(!net.hosts[2].1.take_owner_change());
        // The owner is gone; the next one is the first to be asked from now on.
        net.hosts.swap(0, 2);
        net.hosts.pop();
        let now = net.now;
        net.hosts[0].1.set_owner(now, true);
        assert!(net.hosts[0].1.take_owner_change());
        net.relayed.clear();
        let claims = ask(&mut net, request(SECOND, 1, SET, claimed, 1));
        assert_eq!(claims, Some(Ok(1)), "there is nothing to ask");
        net.pass(Duration::from_secs(6));
        if has_manager {
            let [(0, _, request)] = net.relayed[..] else { panic!("one leave") };
            assert_eq!((request[3], request[sa::DATA + 15]), (sa::METHOD_DELETE, unclaimed));
            assert_eq!(member::PORT_GID.slice(&request[sa::DATA..]), gid_of(SOLO));
        } else {
            for (group, members) in [(claimed, 1), (unclaimed, 0)] {
                let all = net.administer(sa::METHOD_GET_TABLE, Record::Member as u16, 1, &record(group)).unwrap();
                assert_eq!(all.len(), members, "{group}");
            }
        }
        assert!(net.hosts[0].1.processes_in_groups().eq([AgentId(SECOND)]));
    }
}

/// A process that does not own the address learns that another one does.
#[test]
fn processes_hear_of_another_owner() {
    let mut net = Net::new(&[SOLO]);
    let now = net.now;
    for number in [8, 9] {
        net.hosts.push((SOLO, Subnet::new(now, config(SOLO), number << 32)));
    }
    net.pass(INTERVAL_ALONE + INTERVAL);
    assert!(!net.hosts[2].1.take_owner_change(), "the first one it hears of");
    let now = net.now;
    net.hosts[0].1.set_owner(now, false);
    net.hosts[1].1.set_owner(now, true);
    net.pass(INTERVAL);
    assert!(net.hosts[2].1.take_owner_change() && !net.hosts[2].1.take_owner_change());
    // One that begins anew is another one.
    let now = net.now;
    net.hosts[1].1.raise(now, Event::Reregister);
    net.pass(INTERVAL);
    assert!(net.hosts[2].1.take_owner_change());
}

/// No process fills the owner's memory.
#[test]
fn requests_that_wait_are_bounded() {
    let mut net = with_manager();
    let refused =
        (0..1000).filter(|number| join(&mut net, number + 1, *number, 1) == Some(Err(sa::STATUS_NO_RESOURCES)));
    assert_eq!(refused.count(), 1000 - 1 - 64);
    let groups = (0..1000_u16).filter(|number| {
        let mut message = request(FIRST, u32::from(*number) + 5000, SET, 7, 1);
        message.record[2..4].copy_from_slice(&[0xA0, 0x1C]);
        message.record[8..10].copy_from_slice(&number.to_be_bytes());
        ask(&mut net, message) == Some(Err(sa::STATUS_NO_RESOURCES))
    });
    assert_eq!(groups.count(), 1000 - 255);
}

/// Other hosts cannot have the port join groups.
#[test]
fn other_hosts_are_not_heard() {
    let mut net = Net::new(&[SOLO, PEER]);
    let (now, datagram) = (net.now, request(FIRST, 1, SET, 7, 1).to_datagram());
    let refused = net.hosts[0].1.handle_announcement(now, &address(PEER), PEER, &datagram);
    assert_eq!((refused, members(&mut net)), (Err(Refusal::Lie), 0));
    let mut answer = request(FIRST, 1, SET, 7, 1);
    answer.method |= Mad::RESPONSE;
    let refused = net.hosts[0].1.handle_announcement(now, &address(SOLO), SOLO, &answer.to_datagram());
    assert_eq!(refused, Err(Refusal::Lie));
}

/// A manager may have clients register again before the port knows it. What the built-in administration has granted since, that manager does
/// not know.
#[test]
fn a_manager_that_is_known_late_is_told_anew() {
    let mut net = Net::new(&[SOLO, PEER]);
    assert_eq!(join(&mut net, FIRST, 1, 1), Some(Ok(1)));
    let mut info = net.hosts[0].1.own.port_info.to_vec();
    port_info::STATE.put(&mut info, 0);
    port_info::SM_LID.put(&mut info, PEER.0.into());
    port_info::CLIENT_REREGISTER.put(&mut info, 1);
    let (now, datagram) = (net.now, packet(Mad::CLASS_SUBN_LID, SET, Attribute::PortInfo, 1, &info));
    net.hosts[0].1.handle_smp(now, &address(PEER), &datagram, false).unwrap();
    net.carry();
    assert_eq!(net.hosts[0].1.take_event(), Some(Event::Reregister));
    assert_eq!(join(&mut net, FIRST, 2, 1), Some(Ok(1)), "by the built-in administration");
    port_info::SM_LID.put(&mut net.hosts[1].1.own.port_info, PEER.0.into());
    net.hosts[1].1.set_sm(now, true);
    net.pass(INTERVAL * 2);
    let events: Vec<Event> = core::iter::from_fn(|| net.hosts[0].1.take_event()).collect();
    assert_eq!(events, [Event::SubnetManager(PEER), Event::Reregister]);
    assert_eq!((join(&mut net, FIRST, 3, 1), answer(&mut net, 1)), (None, Some(Ok(1))), "the program is asked");
}
