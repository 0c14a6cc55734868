//! Last wills that processes leave with their neighbours.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use urxe_net::{LastWill, LastWillKeeper, RawPeer, last_will_keeper};
use urxe_wire::icrc::{self, Check, Flow};
use urxe_wire::mad::MAD_LEN;
use urxe_wire::{Gid, Packet, Qpn};

use crate::end::{End, PATIENCE};
use crate::namespace::alone;

/// Long enough for what must not come.
const A_WHILE: Duration = Duration::from_millis(50);

fn will(end: &End, name: u32) -> LastWill {
    // 127.0.0.1
    let gid = end.port.interface().gids()[1];
    LastWill { name, local: gid, remote: gid, message: [7; MAD_LEN] }
}

/// Waits until these wills are due at `successor`, while the others go on. Others may be due once more.
fn expect(successor: &mut End, others: &mut [&mut End], names: &[u32]) {
    let mut missing = names.to_vec();
    let until = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        assert!(Instant::now() < until, "{missing:?} are not due");
        others.iter_mut().for_each(|end| drop(end.receive()));
        successor.receive();
        let due = successor.port.take_due_last_wills();
        missing.retain(|name| due.iter().all(|will| will.name != *name));
    }
}

/// Expects that no will is due in a while, in which everybody has their turn many times: what they leave with each other is there then.
fn expect_nothing(successor: &mut End, others: &mut [&mut End]) {
    const TURNS: u32 = 100;
    let until = Instant::now() + A_WHILE;
    for turn in 0_u32.. {
        if turn >= TURNS && Instant::now() >= until {
            break;
        }
        others.iter_mut().for_each(|end| drop(end.receive()));
        successor.receive();
        assert_eq!(successor.port.take_due_last_wills(), []);
    }
}

//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn wills_go_to_the_owner_and_the_owners_to_its_first_follower() {
    alone(|| {
        let (mut owner, follower, mut third) = (End::on("lo"), End::on("lo"), End::on("lo"));
        for name in 1..=3 {
            follower.port.set_last_will(will(&follower, name));
        }
        follower.port.clear_last_will(2);
        let changed = LastWill { message: [8; MAD_LEN], ..will(&follower, 3) };
        follower.port.set_last_will(changed);
        expect_nothing(&mut owner, &mut [&mut third]);
        drop(follower);
        expect(&mut owner, &mut [&mut third], &[1, 3]);
        expect_nothing(&mut owner, &mut [&mut third]);
        // The first follower has gone, so the next one has the owner's.
        owner.port.set_last_will(will(&owner, 4));
        expect_nothing(&mut third, &mut [&mut owner]);
        drop(owner);
        expect(&mut third, &mut [], &[4]);
        third.until("it owns both addresses", |third| third.count("takeovers") == 2);
        let last = End::on("lo");
        last.port.set_last_will(will(&last, 5));
        drop(last);
        expect(&mut third, &mut [], &[5]);
    });
}

#[test]
fn wills_are_left_again_with_who_comes_next() {
    alone(|| {
        let (owner, mut second, mut third) = (End::on("lo"), End::on("lo"), End::on("lo"));
        third.port.set_last_will(will(&third, 1));
        drop(owner);
        let took_over = |end: &End| end.port.counters().takeovers.load(Ordering::Relaxed) > 0;
        let until = Instant::now() + PATIENCE;
        // Both race for the place: whoever has it hears the other's will.
        while !took_over(&second) && !took_over(&third) {
            assert!(Instant::now() < until, "nobody takes over");
            expect_nothing(&mut second, &mut [&mut third]);
        }
        expect_nothing(&mut second, &mut [&mut third]);
        drop(third);
        expect(&mut second, &mut [], &[1]);
    });
}

//= spec/hosts.md#net-031
//= type=test
//# Last wills MUST leave a few at a time, and again only for an owner of the address that has just come.
#[test]
fn a_process_with_many_wills_does_not_take_the_receiver_from_the_others() {
    const MANY: u32 = 200;
    alone(|| {
        let (mut owner, follower, second) = (End::on("lo"), End::on("lo"), End::on("lo"));
        second.port.set_last_will(will(&second, MANY));
        for name in 0..MANY {
            follower.port.set_last_will(will(&follower, name));
            // The connection holds some hundred.
            owner.receive();
        }
        drop(follower);
        let (mut due, mut second) = (Vec::new(), Some(second));
        let until = Instant::now() + PATIENCE;
        while due.len() <= MANY as usize {
            assert!(Instant::now() < until, "{} are due", due.len());
            owner.receive();
            let few = owner.port.take_due_last_wills();
            assert!(few.len() <= 16, "{} at once", few.len());
            due.extend(few.iter().map(|will| will.name));
            if !due.is_empty() {
                // Its end has nobody else's sent again.
                second = None;
            }
        }
        assert!(second.is_none());
        due.sort_unstable();
        assert_eq!(due, (0..=MANY).collect::<Vec<_>>());
        expect_nothing(&mut owner, &mut []);
    });
}

//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn the_keeper_has_the_wills_of_a_process_without_neighbours() {
    const NAME: &str = "keeper";
    alone(|| {
        let peer = RawPeer::bind("127.0.0.2".parse().unwrap()).unwrap();
        let (until, ends) = std::io::pipe().unwrap();
        let mut keeper = LastWillKeeper::new(last_will_keeper::listen(NAME).unwrap());
        let keeper = std::thread::spawn(move || keeper.run(until.as_fd()));
        let end = || {
            let end = End::on("lo");
            end.port.name_last_will_keeper(NAME);
            end
        };
        let leave = |end: &End, name: u8| {
            let message = [name; MAD_LEN];
            let remote = Gid::from(peer.local().ip());
            end.port.set_last_will(LastWill { message, remote, ..will(end, name.into()) });
        };
        let expect_from_keeper = |name: u8| {
            let mut bytes = [0; 512];
            let (length, from) = peer.receive(&mut bytes, PATIENCE).unwrap().expect("a will");
            assert_eq!(icrc::verify(&Flow::new(from, peer.local()), 0, &bytes[..length]), Check::Exact);
            let packet = Packet::parse(&bytes[..length]).unwrap();
            assert_eq!((packet.bth().dest_qp, packet.payload), (Qpn::GSI, &[name; MAD_LEN][..]));
        };
        let first = end();
        leave(&first, 1);
        leave(&first, 2);
        first.port.clear_last_will(1);
        drop(first);
        expect_from_keeper(2);
        // A neighbour comes, goes, and another one comes, which has the wills in the end.
        let mut owner = end();
        leave(&owner, 3);
        let is_known = |other: &mut End, owner: &mut End| expect_nothing(other, &mut [owner]);
        let mut neighbour = end();
        is_known(&mut neighbour, &mut owner);
        leave(&neighbour, 9);
        drop(neighbour);
        // Due when its end is noticed: a program that another test starts may hold its sockets for a while.
        expect(&mut owner, &mut [], &[9]);
        let mut neighbour = end();
        is_known(&mut neighbour, &mut owner);
        drop(owner);
        expect(&mut neighbour, &mut [], &[3]);
        neighbour.until("it owns both addresses", |neighbour| neighbour.count("takeovers") == 2);
        assert!(peer.receive(&mut [0; 512], A_WHILE).unwrap().is_none(), "the keeper has sent what the neighbour had");
        // The last one again, as the keeper is to end.
        leave(&neighbour, 4);
        drop(ends);
        drop(neighbour);
        expect_from_keeper(4);
        keeper.join().unwrap();
    });
}
