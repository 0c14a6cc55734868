//! Announcements, and what a process makes of them.

use super::super::port_events::EVENT_INTERVAL;
use super::*;

#[test]
fn liars_and_floods() {
    let mut net = Net::new(&[SOLO, PEER]);
    let subnet = &mut net.hosts[0].1;
    let facts = |lid: Lid| Facts {
        guid: guid(lid).into(),
        port_info: sma::first_port_info(&config(lid), LEAF),
        description: [0; 64],
    };
    let now = net.now;
    let mut tell =
        |lid: Lid, facts: &Facts| subnet.handle_announcement(now, &address(lid), lid, &Announcement::host(facts, 1));
    assert_eq!(tell(Lid(7), &facts(Lid(8))), Err(Refusal::Lie), "another's LID");
    assert_eq!(tell(Lid(7), &Facts { guid: guid(PEER).into(), ..facts(Lid(7)) }), Err(Refusal::Lie), "another's GUID");
    assert_eq!(tell(Lid(7), &Facts { guid: guid(Lid(9)).into(), ..facts(Lid(7)) }), Err(Refusal::Lie), "nobody's GUID");
    assert_eq!(
        tell(Lid(7), &Facts { guid: 7.into(), ..facts(Lid(7)) }),
        Err(Refusal::Lie),
        "a GUID without an address"
    );
    assert_eq!(tell(LEAF, &facts(LEAF)), Err(Refusal::Lie), "a switch's LID");
    let mut odd = facts(Lid(7));
    port_info::STATE.put(&mut odd.port_info, 9);
    assert_eq!(tell(Lid(7), &odd), Err(Refusal::Lie));
    let full = (3..3000).filter(|lid| tell(Lid(*lid), &facts(Lid(*lid))) == Err(Refusal::Full)).count();
    assert_eq!(full, 2997 - (hosts::HOSTS - 2));
    let mut question = Announcement::question(5);
    let now = now + INTERVAL;
    for (now, answered) in [(now, QUESTIONS as usize), (now, 0), (now + INTERVAL, QUESTIONS as usize)] {
        while subnet.poll_output().is_some() {}
        let ask = |_: &i32| subnet.handle_announcement(now, &address(PEER), PEER, &question).is_ok();
        assert_eq!((0..1000).filter(ask).count(), answered);
        let replies = core::iter::from_fn(|| subnet.poll_output()).filter(|output| matches!(output, Output::Reply(..)));
        assert_eq!(replies.count(), answered);
    }
    question[2] = 9;
    assert_eq!(subnet.handle_announcement(now, &address(PEER), PEER, &question), Err(Refusal::Malformed));
    assert_eq!(question[1], subnet_vendor::CLASS);
}

/// Datagrams from beyond a router are of no host of the subnet.
#[test]
fn hosts_of_other_networks_are_not_heard() {
    let mut net = Net::new(&[SOLO]);
    let subnet = &mut net.hosts[0].1;
    let now = net.now;
    subnet.configure(now, PortConfig { prefix_len: 24, ..config(SOLO) });
    let peer = |lid: Lid| Subnet::new(now, config(lid), 0).own;
    for (lid, heard) in [(PEER, Ok(())), (FAR, Err(Refusal::Lie))] {
        for told in [Announcement::host(&peer(lid), 1), Announcement::question(5)] {
            assert_eq!(subnet.handle_announcement(now, &address(lid), lid, &told), heard, "{lid}");
        }
        let datagram = packet(Mad::CLASS_SUBN_LID, GET, Attribute::NodeInfo, 0, &[]);
        assert_eq!(subnet.handle_smp(now, &address(lid), &datagram, false), heard.map(|()| None), "{lid}");
    }
    assert_eq!(subnet.hosts().collect::<Vec<_>>(), [SOLO, PEER]);
}

/// However late the process gets to it, it asks twice, and waits for answers as long as ever.
#[test]
fn the_subnet_is_asked_twice() {
    for late in [Duration::ZERO, READY * 5] {
        let now = Instant::from_nanos(1) + late;
        let mut subnet = Subnet::new(Instant::from_nanos(1), config(SOLO), 0);
        subnet.set_owner(now, false);
        let questions = |subnet: &mut Subnet, now| {
            subnet.handle_timeout(now);
            core::iter::from_fn(|| subnet.poll_output()).filter(|output| matches!(output, Output::Announce(_))).count()
        };
        assert_eq!(questions(&mut subnet, now), 1);
        assert!(!subnet.is_ready(now));
        assert_eq!(subnet.poll_timeout(), Some(now + AGAIN));
        assert_eq!(questions(&mut subnet, now + AGAIN), 1);
        assert_eq!(subnet.poll_timeout(), None, "it does not wake up without need");
        assert_eq!(questions(&mut subnet, now + READY), 0);
        assert!(subnet.is_ready(now + READY));
    }
}

/// A host that has just come is not among those that the first one to answer knows, and hosts that it does not know of answer later.
#[test]
fn one_answer_of_several_is_not_the_subnet() {
    for is_asked in [true, false] {
        let mut net = Net::new(&[SOLO, PEER]);
        let now = net.now;
        let mut late = Subnet::new(now, config(FAR), 9 << 32);
        late.set_owner(now, true);
        late.handle_timeout(now);
        let mut said = core::iter::from_fn(|| late.poll_output()).filter_map(|output| match output {
            Output::Announce(datagram) => Some(datagram),
            _ => None,
        });
        if is_asked {
            let question = said.next().unwrap();
            for (_, subnet) in &mut net.hosts {
                subnet.handle_announcement(now, &address(FAR), FAR, &question).unwrap();
            }
        } else {
            net.hosts.iter_mut().for_each(|(_, subnet)| subnet.announce(now));
        }
        for (number, is_ready) in [(0, false), (1, is_asked)] {
            let (lid, subnet) = &mut net.hosts[number];
            while let Some(Output::Reply(_, _, told) | Output::Announce(told)) = subnet.poll_output() {
                late.handle_announcement(now, &address(*lid), *lid, &told).unwrap();
            }
            assert_eq!(late.is_ready(now), is_ready, "{is_asked} {number}");
        }
    }
}

/// Time passes without wake-ups where nothing is pending: the owner says now and then that it is there, the others are silent.
#[test]
fn single_host_is_quiet() {
    let mut net = Net::new(&[SOLO]);
    let wakes = |net: &mut Net, time: Duration| {
        let (mut count, end) = (0, net.now + time);
        while let Some(at) = net.hosts[0].1.poll_timeout().filter(|at| *at <= end) {
            count += 1;
            assert!(count < 1000, "without end");
            net.now = net.now.max(at);
            net.hosts[0].1.handle_timeout(at);
            net.carry();
        }
        net.now = end;
        count
    };
    let minute = Duration::from_secs(60);
    assert_eq!(wakes(&mut net, minute), 6);
    let now = net.now;
    net.hosts[0].1.set_owner(now, false);
    assert_eq!(wakes(&mut net, minute), 0);
    let now = net.now;
    net.hosts[0].1.set_owner(now, true);
    let peer = Subnet::new(now, config(PEER), 0).own;
    let told = Announcement::host(&peer, 1);
    net.hosts[0].1.handle_announcement(now, &address(PEER), PEER, &told).unwrap();
    assert!(wakes(&mut net, INTERVAL * 3) >= 3, "with another host it announces itself each second");
    assert_eq!(net.hosts[0].1.hosts().count(), 2);
    wakes(&mut net, hosts::AGE);
    assert_eq!(net.hosts[0].1.hosts().count(), 1, "it is missed without anybody asking");
}

/// Messages of other hosts to subnet administration take no room of those that wait until the subnet is known.
#[test]
fn strangers_do_not_keep_programs_from_waiting() {
    let now = Instant::from_nanos(1);
    let mut early = Subnet::new(now, config(SOLO), 0);
    let mut message = vec![0; MAD_LEN];
    header(Mad::CLASS_SUBN_ADM, GET, Record::Node as u16, 0).emit(message.first_chunk_mut().unwrap());
    for _ in 0..HELD {
        let refused = early.handle_administration(now, &address(PEER), PEER, message.clone());
        assert_eq!(refused, Err(Refusal::Lie));
    }
    assert_eq!(early.handle_administration(now, &address(SOLO), SOLO, message), Ok(()));
}

#[test]
fn another_address_is_another_port() {
    let mut net = Net::new(&[SOLO, PEER]);
    let now = net.now;
    let member = |lid| {
        let gid = gid_of(lid);
        let mut wanted = vec![0; 52];
        member::MGID.put_slice(&mut wanted, &[0xFF, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        member::PORT_GID.put_slice(&mut wanted, &gid);
        member::JOIN_STATE.put(&mut wanted, 1);
        member::P_KEY.put(&mut wanted, 0xFFFF);
        wanted
    };
    let create = member::JOIN | member::HAS_MGID | member::CREATE;
    assert!(net.administer(SET, Record::Member as u16, create, &member(SOLO)).is_ok());
    let subnet = &mut net.hosts[0].1;
    while subnet.take_event().is_some() {}
    subnet.configure(now, config(FAR));
    net.hosts[0].0 = FAR;
    let subnet = &mut net.hosts[0].1;
    assert_eq!(
        core::iter::from_fn(|| subnet.take_event()).find(|event| matches!(event, Event::Lid(_))),
        Some(Event::Lid(FAR))
    );
    assert_eq!(subnet.hosts().collect::<Vec<_>>(), [FAR], "of what is around it now it knows nothing");
    let find =
        |net: &mut Net| net.administer(sa::METHOD_GET_TABLE, Record::Member as u16, 0, &[]).map(|found| found.len());
    net.pass(READY + AGAIN);
    assert_eq!(find(&mut net), Ok(0), "the old port's memberships are gone");
    assert_eq!(net.hosts[0].1.hosts().collect::<Vec<_>>(), [PEER, FAR]);
}

/// Clients of every process of the host are told to register again, and that the port has become active.
#[test]
fn clients_of_all_processes_are_told() {
    let mut net = Net::new(&[SOLO, PEER]);
    let (now, number) = (net.now, net.hosts.len());
    net.hosts.push((PEER, Subnet::new(now, config(PEER), 9 << 32)));
    net.pass(READY + AGAIN);
    net.hosts[0].1.set_sm(net.now, true);
    net.carry();
    let events =
        |net: &mut Net, number: usize| core::iter::from_fn(|| net.hosts[number].1.take_event()).collect::<Vec<_>>();
    assert_eq!(events(&mut net, number), [], "nothing has changed since it began");
    let mut info = net.get(&[1, 2], Attribute::PortInfo, 1);
    port_info::SM_LID.put(&mut info, SOLO.0.into());
    for (state, reregister, wanted) in [
        (0, 1, vec![Event::SubnetManager(SOLO), Event::Reregister]),
        (port_info::DOWN, 0, vec![Event::Active(false)]),
        (port_info::ARMED, 0, vec![]),
        (port_info::ACTIVE, 0, vec![Event::Active(true)]),
    ] {
        port_info::STATE.put(&mut info, state);
        port_info::CLIENT_REREGISTER.put(&mut info, reregister);
        if state == 0 {
            // The manager's own port is another's to follow first.
            let mut own = info.clone();
            port_info::LID.put(&mut own, SOLO.0.into());
            port_info::CLIENT_REREGISTER.put(&mut own, 0);
            net.directed(&[], SET, Attribute::PortInfo, 1, &own).unwrap();
        }
        net.directed(&[1, 2], SET, Attribute::PortInfo, 1, &info).unwrap();
        net.pass(SPACING + EVENT_INTERVAL);
        let sort = |mut events: Vec<Event>| {
            events.sort_by_key(|event| alloc::format!("{event:?}"));
            events
        };
        let wanted = sort(wanted);
        assert_eq!(sort(events(&mut net, 1)), wanted, "the owner");
        assert_eq!(sort(events(&mut net, number)), wanted, "another process");
    }
    net.pass(INTERVAL * 3);
    assert_eq!(events(&mut net, number), [], "once");
    // The built-in manager takes over, and brings the port up.
    port_info::STATE.put(&mut info, port_info::DOWN);
    net.directed(&[1, 2], SET, Attribute::PortInfo, 1, &info).unwrap();
    net.pass(SPACING);
    net.hosts[0].1.set_sm(net.now, false);
    net.pass(INTERVAL);
    for number in [1, number] {
        let told = events(&mut net, number);
        let of_port = told.iter().filter(|event| matches!(event, Event::Active(_))).collect::<Vec<_>>();
        assert_eq!(of_port, [&Event::Active(false), &Event::Active(true)]);
        // It knows nothing of what the program was told.
        assert!(told.contains(&Event::SubnetManager(LEAF)) && told.contains(&Event::Reregister) && told.len() == 4);
    }
    // Of the link itself others tell.
    let now = net.now;
    net.hosts[1].1.configure(now, PortConfig { is_up: false, ..config(PEER) });
    assert_eq!(events(&mut net, 1), []);
}

/// However often a host asks clients to register again, or names itself as the manager and takes it back, programs are told at
/// intervals, of the last state in the end, and so are other processes and hosts.
#[test]
fn floods_of_changes_are_few_events_and_announcements() {
    let mut net = Net::new(&[SOLO, PEER]);
    let mut info = net.get(&[], Attribute::PortInfo, 1);
    port_info::CLIENT_REREGISTER.put(&mut info, 1);
    let facts = Subnet::new(net.now, config(PEER), 0).own;
    let subnet = &mut net.hosts[0].1;
    while subnet.take_event().is_some() || subnet.poll_output().is_some() {}
    let (start, step) = (net.now, Duration::from_micros(100));
    let (mut events, mut announcements) = (Vec::new(), 0);
    let count = |subnet: &mut Subnet, events: &mut Vec<Event>, announcements: &mut usize| {
        events.extend(core::iter::from_fn(|| subnet.take_event()));
        let outputs = core::iter::from_fn(|| subnet.poll_output());
        *announcements += outputs.filter(|output| matches!(output, Output::Announce(_))).count();
    };
    let mut now = start;
    for number in 0..10_000_u16 {
        now = now + step;
        // Each is a change of the port.
        port_info::SUBNET_TIMEOUT.put(&mut info, (number % 2 + 7).into());
        let datagram = packet(Mad::CLASS_SUBN_LID, SET, Attribute::PortInfo, 1, &info);
        subnet.handle_smp(now, &address(PEER), &datagram, false).unwrap();
        let mut told = facts;
        let is_sm = number % 2 == 1;
        port_info::SM_LID.put(&mut told.port_info, PEER.0.into());
        let mask = told.field(port_info::CAPABILITY_MASK) | if is_sm { port_info::IS_SM } else { 0 };
        port_info::CAPABILITY_MASK.put(&mut told.port_info, mask);
        subnet.handle_announcement(now, &address(PEER), PEER, &Announcement::host(&told, 1)).unwrap();
        if subnet.poll_timeout().is_some_and(|at| at <= now) {
            subnet.handle_timeout(now);
        }
        count(subnet, &mut events, &mut announcements);
    }
    // One second: an announcement each 50 ms, and one each 100 ms by which clients register again.
    assert!((20..=32).contains(&announcements), "{announcements}");
    let of_kind = |event: Event| {
        let same = core::mem::discriminant(&event);
        events.iter().filter(|other| core::mem::discriminant(*other) == same).count()
    };
    for event in [Event::Reregister, Event::SubnetManager(PEER)] {
        assert!((9..=11).contains(&of_kind(event)), "{event:?}: {}", of_kind(event));
    }
    now = now + EVENT_INTERVAL;
    assert!(subnet.poll_timeout().is_some_and(|at| at <= now), "the last of them is told without a datagram");
    subnet.handle_timeout(now);
    count(subnet, &mut events, &mut announcements);
    assert_eq!(subnet.sm_lid(), PEER);
    let mut managers = events.iter().filter(|event| matches!(event, Event::SubnetManager(_)));
    assert_eq!(managers.next_back(), Some(&Event::SubnetManager(PEER)));
}

/// Groups go out when they have changed, and once in an interval however often the port is announced.
#[test]
fn groups_are_announced_in_intervals() {
    let mut net = Net::new(&[SOLO, PEER]);
    let mut wanted = vec![0; 52];
    member::MGID.put_slice(&mut wanted, &[0xFF, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    member::PORT_GID.put_slice(&mut wanted, &gid_of(SOLO));
    member::JOIN_STATE.put(&mut wanted, 1);
    member::P_KEY.put(&mut wanted, 0xFFFF);
    let create = member::JOIN | member::HAS_MGID | member::CREATE;
    net.administer(SET, Record::Member as u16, create, &wanted).unwrap();
    let (subnet, start) = (&mut net.hosts[0].1, net.now);
    while subnet.poll_output().is_some() {}
    let (mut hosts, mut groups) = (Vec::new(), Vec::new());
    for step in 1..=300 {
        let now = start + Duration::from_millis(10) * step;
        subnet.set_sm(now, step % 2 == 1);
        subnet.handle_timeout(now);
        for output in core::iter::from_fn(|| subnet.poll_output()) {
            match output {
                Output::Announce(told) => match Announcement::parse(&told) {
                    Some(Announcement::Groups(..)) => groups.push(now),
                    _ => hosts.push(now),
                },
                _ => panic!("{output:?}"),
            }
        }
    }
    assert!((55..=60).contains(&hosts.len()), "{}", hosts.len());
    // The join, and three intervals.
    assert!((3..=4).contains(&groups.len()), "{groups:?}");
    assert!(groups.windows(2).skip(1).all(|pair| pair[1].since(pair[0]) >= INTERVAL), "{groups:?}");
    assert!(groups[0] <= start + SPACING, "a change is told soon");
}
