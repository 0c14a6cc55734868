//! Subnet management packets: directed routes, agents of ports and switches, managers.

use super::*;

#[test]
fn a_host_alone_finds_itself_and_its_switch() {
    let mut net = Net::new(&[SOLO]);
    let own = net.get(&[], Attribute::NodeInfo, 0);
    assert_eq!((node_info::NODE_TYPE.get(&own), node_info::NODE_GUID.get(&own)), (1, guid(SOLO)));
    let switch = net.get(&[1], Attribute::NodeInfo, 0);
    assert_eq!((node_info::NODE_TYPE.get(&switch), node_info::LOCAL_PORT.get(&switch)), (2, 1));
    assert_eq!(node_info::NUM_PORTS.get(&switch), u64::from(UPLINK));
    assert_eq!(net.get(&[1, 1], Attribute::NodeInfo, 0), own, "and back");
    for nowhere in [&[2][..], &[1, 2], &[1, 1, 1], &[1, UPLINK], &[1, 255]] {
        assert!(net.directed(nowhere, GET, Attribute::NodeInfo, 0, &[]).is_none(), "{nowhere:?}");
    }
    let info = net.get(&[], Attribute::PortInfo, 1);
    assert_eq!((port_info::STATE.get(&info), port_info::SM_LID.get(&info)), (port_info::ACTIVE, 0xBF00));
}

#[test]
fn directed_routes_lead_through_switches() {
    let mut net = Net::new(&[SOLO, PEER, FAR]);
    for (path, lid) in [(&[1, 2][..], PEER), (&[1, UPLINK, 2, 21], FAR)] {
        let info = net.get(path, Attribute::NodeInfo, 0);
        assert_eq!(node_info::NODE_GUID.get(&info), guid(lid), "{path:?}");
        assert_eq!(port_info::LID.get(&net.get(path, Attribute::PortInfo, 0)), lid.0.into());
    }
    let spine = net.get(&[1, UPLINK], Attribute::NodeInfo, 0);
    assert_eq!(node_info::NODE_GUID.get(&spine), Switch::Spine.guid().into());
    assert_eq!(node_info::LOCAL_PORT.get(&spine), 1);
    let answer = net.directed(&[1, UPLINK, 2], GET, Attribute::NodeInfo, 0, &[]).unwrap();
    assert_eq!(answer[193..196], [1, 1, UPLINK], "the return path: where each hop was entered");
    let table = net.get(&[1], Attribute::LinearForwarding, 0);
    assert_eq!(table[..4], [255, 1, 2, 255]);
    assert_eq!(net.get(&[1], Attribute::LinearForwarding, 261 / 64)[261 % 64], UPLINK);
    assert_eq!(net.get(&[1, UPLINK], Attribute::LinearForwarding, 261 / 64)[261 % 64], 2);
    assert_eq!(net.get(&[1], Attribute::LinearForwarding, 0xBF00 / 64)[..2], [0, UPLINK]);
}

#[test]
fn requests_by_lid() {
    let mut net = Net::new(&[SOLO, PEER]);
    let ask = |net: &mut Net, lid, attribute| {
        let answer = net.ask(lid, &packet(Mad::CLASS_SUBN_LID, GET, attribute, 0, &[]))?;
        Some((Mad::of(&answer).unwrap().status, answer[DATA..DATA + 64].to_vec()))
    };
    let (status, info) = ask(&mut net, PEER, Attribute::NodeInfo).unwrap();
    assert_eq!((status, node_info::PORT_GUID.get(&info)), (0, guid(PEER)));
    let (_, info) = ask(&mut net, LEAF, Attribute::SwitchInfo).unwrap();
    assert_eq!(switch_info::LINEAR_CAP.get(&info), 0xC000);
    let (_, info) = ask(&mut net, LEAF, Attribute::SmInfo).unwrap();
    assert_eq!((sm_info::STATE.get(&info), sm_info::GUID.get(&info)), (3, Switch::Leaf(0).guid().into()));
    assert_eq!(ask(&mut net, PEER, Attribute::SmInfo).unwrap().0, Mad::STATUS_BAD_METHOD_ATTRIBUTE);
    assert!(ask(&mut net, Lid(0xBF01), Attribute::NodeInfo).is_none(), "a switch without hosts is not there");
    for nobody in [0, 0xC000] {
        assert!(ask(&mut net, Lid(nobody), Attribute::NodeInfo).is_none());
    }
}

#[test]
fn port_states_change_in_order() {
    let mut net = Net::new(&[SOLO, PEER]);
    let info = net.get(&[1, 2], Attribute::PortInfo, 1);
    let set = |net: &mut Net, state: u64| {
        let mut wanted = info.clone();
        port_info::STATE.put(&mut wanted, state);
        let answer = net.directed(&[1, 2], SET, Attribute::PortInfo, 1, &wanted).unwrap();
        (smp::status(&Mad::of(&answer).unwrap()), port_info::STATE.get(&net.get(&[1, 2], Attribute::PortInfo, 1)))
    };
    use port_info::{ACTIVE, ARMED, DOWN, INIT};
    let refused = Mad::STATUS_INVALID_FIELD;
    // Without a manager that is a program, the built-in one brings a port up again at once.
    assert_eq!(set(&mut net, DOWN), (0, ACTIVE));
    net.hosts[0].1.set_sm(net.now, true);
    net.carry();
    let mut managed = info.clone();
    port_info::SM_LID.put(&mut managed, SOLO.0.into());
    let answer = net.directed(&[], SET, Attribute::PortInfo, 1, &{
        let mut own = managed.clone();
        port_info::LID.put(&mut own, SOLO.0.into());
        own
    });
    assert_eq!(smp::status(&Mad::of(&answer.unwrap()).unwrap()), 0);
    let info = managed;
    let set = |net: &mut Net, state: u64| {
        let mut wanted = info.clone();
        port_info::STATE.put(&mut wanted, state);
        let answer = net.directed(&[1, 2], SET, Attribute::PortInfo, 1, &wanted).unwrap();
        (smp::status(&Mad::of(&answer).unwrap()), port_info::STATE.get(&net.get(&[1, 2], Attribute::PortInfo, 1)))
    };
    assert_eq!(set(&mut net, 0), (0, ACTIVE));
    assert_eq!(set(&mut net, ARMED), (refused, ACTIVE));
    assert_eq!(set(&mut net, DOWN), (0, INIT));
    net.pass(SPACING);
    assert_eq!(port_info::STATE.get(&net.get(&[1], Attribute::PortInfo, 2)), INIT, "the switch's end of the link");
    assert_eq!(set(&mut net, ACTIVE), (refused, INIT));
    assert_eq!(set(&mut net, ARMED), (0, ARMED));
    assert_eq!(set(&mut net, ACTIVE), (0, ACTIVE));
    // A LID follows from an address.
    let mut wanted = info.clone();
    port_info::LID.put(&mut wanted, 77);
    let answer = net.directed(&[1, 2], SET, Attribute::PortInfo, 1, &wanted).unwrap();
    assert_eq!(smp::status(&Mad::of(&answer).unwrap()), refused);
}

#[test]
fn a_locked_port_wants_its_key() {
    let mut net = Net::new(&[SOLO, PEER]);
    net.hosts[0].1.set_sm(net.now, true);
    net.carry();
    let mut info = net.get(&[1, 2], Attribute::PortInfo, 1);
    port_info::STATE.put(&mut info, 0);
    port_info::SM_LID.put(&mut info, SOLO.0.into());
    port_info::M_KEY.put(&mut info, 0xABCD);
    port_info::M_KEY_PROTECTION.put(&mut info, 2);
    net.directed(&[1, 2], SET, Attribute::PortInfo, 1, &info).unwrap();
    let mut datagram = packet(Mad::CLASS_SUBN_LID, GET, Attribute::PortInfo, 1, &[]);
    let ask =
        |net: &mut Net, datagram: &[u8; MAD_LEN]| net.hosts[1].1.handle_smp(net.now, &address(SOLO), datagram, false);
    assert_eq!(ask(&mut net, &datagram), Err(Refusal::Key));
    smp::M_KEY.put(&mut datagram, 0xABCD);
    assert_eq!(ask(&mut net, &datagram), Ok(None));
    assert!(net.hosts[1].1.hosts.all().all(|facts| facts.field(port_info::M_KEY) == 0), "nobody else learns it");
}

/// A host that is no subnet manager cannot lock another one's port, which its manager could not manage then; nor can a manager for another.
#[test]
fn strangers_do_not_lock_a_port() {
    let mut net = Net::new(&[SOLO, PEER, Lid(3)]);
    net.hosts[2].1.set_sm(net.now, true);
    net.carry();
    let set = |net: &mut Net, sender: Lid, sm_lid: Lid| {
        let mut info = net.hosts[1].1.own.port_info.to_vec();
        port_info::STATE.put(&mut info, 0);
        port_info::SM_LID.put(&mut info, sm_lid.0.into());
        port_info::M_KEY.put(&mut info, 0xABCD);
        let datagram = packet(Mad::CLASS_SUBN_LID, SET, Attribute::PortInfo, 1, &info);
        net.hosts[1].1.handle_smp(net.now, &address(sender), &datagram, false).unwrap();
        let answer = core::iter::from_fn(|| net.hosts[1].1.poll_output()).find_map(|output| match output {
            Output::Reply(_, _, datagram) => Some(smp::status(&Mad::of(&datagram)?)),
            _ => None,
        });
        (answer.unwrap(), net.hosts[1].1.m_key)
    };
    let refused = Mad::STATUS_INVALID_FIELD;
    for (sender, sm_lid) in [(SOLO, SOLO), (SOLO, Lid(3)), (SOLO, LEAF), (Lid(9), Lid(9)), (Lid(3), SOLO)] {
        assert_eq!(set(&mut net, sender, sm_lid), (refused, 0), "{sender} {sm_lid}");
    }
    assert_eq!(set(&mut net, Lid(3), Lid(3)), (0, 0xABCD));
}

/// Keys end with the manager, and with the process that they were set in: nobody is left who could unlock the port.
#[test]
fn keys_do_not_outlive_who_has_set_them() {
    let set = |key: u64, with: u64, sm_lid: Lid, net: &mut Net| {
        let mut info = net.hosts[1].1.own.port_info.to_vec();
        port_info::STATE.put(&mut info, 0);
        port_info::SM_LID.put(&mut info, sm_lid.0.into());
        port_info::M_KEY.put(&mut info, key);
        let mut datagram = packet(Mad::CLASS_SUBN_LID, SET, Attribute::PortInfo, 1, &info);
        smp::M_KEY.put(&mut datagram, with);
        net.hosts[1].1.handle_smp(net.now, &address(SOLO), &datagram, false)
    };
    let mut net = Net::new(&[SOLO, PEER]);
    for _ in 0..2 {
        assert_eq!(set(0xABCD, 0, LEAF, &mut net), Ok(None), "the built-in manager has no key");
    }
    net.hosts[0].1.set_sm(net.now, true);
    net.carry();
    assert_eq!(set(0xABCD, 0, SOLO, &mut net), Ok(None));
    assert_eq!(set(1, 0, SOLO, &mut net), Err(Refusal::Key));
    for is_owner in [false, true] {
        net.hosts[1].1.set_owner(net.now, is_owner);
    }
    assert_eq!(set(1, 0, SOLO, &mut net), Ok(None), "another process was asked meanwhile");
}

#[test]
fn a_program_becomes_the_manager_and_is_missed() {
    let mut net = Net::new(&[SOLO, PEER]);
    assert_eq!(net.hosts[1].1.sm_lid(), LEAF);
    net.hosts[0].1.set_sm(net.now, true);
    net.carry();
    assert_eq!(net.hosts[1].1.sm_lid(), LEAF, "it has not taken over yet");
    for (path, lid) in [(&[][..], SOLO), (&[1, 2], PEER)] {
        let mut info = net.get(path, Attribute::PortInfo, 1);
        port_info::STATE.put(&mut info, 0);
        port_info::SM_LID.put(&mut info, SOLO.0.into());
        let answer = net.directed(path, SET, Attribute::PortInfo, 1, &info).unwrap();
        assert_eq!(smp::status(&Mad::of(&answer).unwrap()), 0, "{lid}");
    }
    net.pass(SPACING);
    assert_eq!([0, 1].map(|host| net.hosts[host].1.sm_lid()), [SOLO; 2]);
    assert_eq!(net.hosts[1].1.take_event(), Some(Event::SubnetManager(SOLO)));
    // What goes to the switch's manager goes to the program.
    let now = net.now;
    net.hosts[1].1.send(now, LEAF, Qpn::SMI, &packet(Mad::CLASS_SUBN_LID, GET, Attribute::SmInfo, 0, &[])).unwrap();
    let to = core::iter::from_fn(|| net.hosts[1].1.poll_output()).find_map(|output| match output {
        Output::Send(lid, Qpn::SMI, _) => Some(lid),
        _ => None,
    });
    assert_eq!(to, Some(SOLO));
    net.hosts[0].1.set_sm(net.now, false);
    net.pass(SPACING);
    assert_eq!([0, 1].map(|host| net.hosts[host].1.sm_lid()), [LEAF; 2]);
}

/// Trap 144, also of a program that manages before its process knows the master.
#[test]
fn the_master_hears_of_another_manager() {
    for knows in [true, false] {
        let mut net = Net::new(&[SOLO, PEER]);
        net.hosts[0].1.set_sm(net.now, true);
        net.carry();
        for (path, lid) in [(&[][..], SOLO), (&[1, 2], PEER)] {
            let mut info = net.get(path, Attribute::PortInfo, 1);
            port_info::STATE.put(&mut info, 0);
            port_info::SM_LID.put(&mut info, SOLO.0.into());
            net.directed(path, SET, Attribute::PortInfo, 1, &info).unwrap_or_else(|| panic!("{lid}"));
        }
        let master = net.hosts[0].1.own;
        let now = net.now;
        let mut other = Subnet::new(now, config(PEER), 9 << 32);
        other.set_owner(now, true);
        let tell = |other: &mut Subnet| {
            let told = Announcement::host(&master, 1);
            other.handle_announcement(now, &address(SOLO), SOLO, &told).unwrap();
        };
        if knows {
            tell(&mut other);
        }
        other.set_sm(now, true);
        tell(&mut other);
        tell(&mut other);
        let traps: Vec<_> = core::iter::from_fn(|| other.poll_output())
            .filter_map(|output| match output {
                Output::Request(lid, trap, _) => Some((lid, notice::CAPABILITY_MASK.get(&trap[DATA..]))),
                _ => None,
            })
            .collect();
        assert_eq!(traps, [(SOLO, u64::from(config(PEER).capability_mask) | port_info::IS_SM)], "{knows}: once");
    }
}

/// A host may come between the moment that a manager has computed tables and the moment that it sets them.
#[test]
fn a_table_that_is_set_is_answered_as_it_was_set() {
    let mut net = Net::new(&[SOLO, PEER]);
    let mut table = net.get(&[1], Attribute::LinearForwarding, 0);
    table[7] = 7;
    let answer = net.directed(&[1], SET, Attribute::LinearForwarding, 0, &table).unwrap();
    assert_eq!(answer[DATA..DATA + 64], table[..]);
    assert_eq!(net.get(&[1], Attribute::LinearForwarding, 0)[7], 255, "there is no such host");
    let answer = net.directed(&[1], SET, Attribute::LinearForwarding, 0xC000 / 64, &table).unwrap();
    assert_eq!(smp::status(&Mad::of(&answer).unwrap()), Mad::STATUS_INVALID_FIELD);
}

#[test]
fn hosts_come_and_go_and_traps_say_so() {
    let mut net = Net::new(&[SOLO, PEER]);
    net.hosts[0].1.set_takes_traps(true);
    let now = net.now;
    let mut late = Subnet::new(now, config(FAR), 9 << 32);
    late.set_owner(now, true);
    net.hosts.push((FAR, late));
    net.local.clear();
    net.pass(READY);
    assert_eq!(net.hosts[0].1.hosts().collect::<Vec<_>>(), [SOLO, PEER, FAR]);
    let trap = |net: &Net| {
        let (number, lid, datagram) = net.local.first().unwrap();
        assert_eq!((*number, Mad::of(datagram).unwrap().method), (0, Mad::METHOD_TRAP));
        (notice::TRAP.get(&datagram[DATA..]), *lid)
    };
    assert_eq!(trap(&net), (notice::LINK_CHANGED, Lid(0xBF01)));
    let changed = net.get(&[1, UPLINK], Attribute::SwitchInfo, 0);
    assert_eq!(switch_info::PORT_STATE_CHANGE.get(&changed), 1);
    net.directed(&[1, UPLINK], SET, Attribute::SwitchInfo, 0, &changed).unwrap();
    assert_eq!(switch_info::PORT_STATE_CHANGE.get(&net.get(&[1, UPLINK], Attribute::SwitchInfo, 0)), 0);
    // Between the moments that a manager reads and clears the bit.
    net.hosts[0].1.tell_link(FAR);
    net.directed(&[1, UPLINK], SET, Attribute::SwitchInfo, 0, &changed).unwrap();
    assert_eq!(switch_info::PORT_STATE_CHANGE.get(&net.get(&[1, UPLINK], Attribute::SwitchInfo, 0)), 1);
    net.directed(&[1, UPLINK], SET, Attribute::SwitchInfo, 0, &changed).unwrap();
    assert_eq!(switch_info::PORT_STATE_CHANGE.get(&net.get(&[1, UPLINK], Attribute::SwitchInfo, 0)), 0);
    net.local.clear();
    net.hosts.pop();
    net.pass(hosts::AGE + INTERVAL * 2);
    assert_eq!(net.hosts[0].1.hosts().collect::<Vec<_>>(), [SOLO, PEER]);
    assert_eq!(trap(&net).0, notice::LINK_CHANGED);
}

#[test]
fn requests_before_the_subnet_is_known_wait() {
    let now = Instant::from_nanos(1);
    let mut early = Subnet::new(now, config(SOLO), 0);
    let ask = |subnet: &mut Subnet| {
        let mut datagram = packet(Mad::CLASS_SUBN_DIRECTED, GET, Attribute::NodeInfo, 0, &[]);
        datagram[32..36].fill(0xFF);
        (datagram[7], datagram[129], datagram[130]) = (2, 1, 2);
        subnet.send(now, Lid::PERMISSIVE, Qpn::SMI, &datagram)
    };
    assert_eq!(ask(&mut early), Ok(()));
    assert!(early.poll_output().is_none());
    let refused = (0..1000).filter(|_| ask(&mut early) == Err(Refusal::Full)).count();
    assert_eq!(refused, 1001 - HELD);
    let peer = Subnet::new(now, config(PEER), 0);
    let told = Announcement::answer(&peer.own, 1, 2, 0);
    early.handle_announcement(now, &address(PEER), PEER, &told).unwrap();
    assert_eq!(early.poll_timeout(), Some(Instant::default()), "now");
    early.handle_timeout(now);
    assert_eq!(
        core::iter::from_fn(|| early.poll_output()).filter(|output| matches!(output, Output::Send(PEER, ..))).count(),
        HELD
    );
}

#[test]
fn answers_never_grow_and_bad_positions_are_refused() {
    let mut net = Net::new(&[SOLO, PEER]);
    let mut datagram = packet(Mad::CLASS_SUBN_DIRECTED, GET, Attribute::NodeInfo, 0, &[]);
    datagram[32..36].fill(0xFF);
    let now = net.now;
    for (pointer, count) in [(0, 64), (1, 0xFF), (3, 1), (0, 1), (1, 2)] {
        (datagram[6], datagram[7]) = (pointer, count);
        let refused = net.hosts[1].1.handle_smp(now, &address(SOLO), &datagram, false);
        assert_eq!(refused, Err(Refusal::NoWay), "{pointer} of {count}");
    }
    datagram[4] = 0x80;
    (datagram[6], datagram[7]) = (2, 3);
    assert_eq!(net.hosts[1].1.handle_smp(now, &address(SOLO), &datagram, false), Err(Refusal::NoWay));
    let mut response = [1; MAD_LEN];
    response[3] = 0x81;
    assert_eq!(net.hosts[1].1.handle_smp(now, &address(SOLO), &response, false), Ok(Some(response)));
    assert_eq!(net.hosts[1].1.handle_smp(now, &address(SOLO), &[0; MAD_LEN], false), Err(Refusal::Malformed));
}

/// A program is seen to be a subnet manager a moment after it has made itself the master, or is not seen for a moment.
#[test]
fn a_manager_that_is_seen_late_is_the_master() {
    for sets_first in [false, true] {
        let mut net = Net::new(&[SOLO, PEER]);
        if !sets_first {
            net.hosts[0].1.set_sm(net.now, true);
            net.carry();
        }
        let mut info = net.get(&[], Attribute::PortInfo, 1);
        port_info::STATE.put(&mut info, 0);
        port_info::SM_LID.put(&mut info, SOLO.0.into());
        net.directed(&[], SET, Attribute::PortInfo, 1, &info).unwrap();
        if !sets_first {
            net.hosts[0].1.set_sm(net.now, false);
            net.pass(SPACING);
        }
        net.hosts[0].1.set_sm(net.now, true);
        net.pass(SPACING * 2);
        assert_eq!([0, 1].map(|host| net.hosts[host].1.sm_lid()), [SOLO; 2], "sets first: {sets_first}");
    }
}
