//! What processes leave with their neighbours to be said for them.

use std::time::{Duration, Instant};

use urxe_net::Will;
use urxe_wire::mad::MAD_LEN;

use crate::end::{End, PATIENCE};
use crate::namespace::alone;

/// Long enough for what must not come.
const A_WHILE: Duration = Duration::from_millis(50);

fn will(end: &End, name: u32) -> Will {
    // 127.0.0.1
    let gid = end.port.interface().gids()[1];
    Will { name, local: gid, remote: gid, message: [7; MAD_LEN] }
}

/// Names of the wills that are due at `heir` while the others go on; as many as are expected, or all in a while.
fn due(heir: &mut End, others: &mut [&mut End], expected: usize) -> Vec<u32> {
    let mut names = Vec::new();
    let until = Instant::now() + if expected == 0 { A_WHILE } else { PATIENCE };
    while Instant::now() < until && (names.len() < expected || expected == 0) {
        for end in others.iter_mut() {
            end.receive();
        }
        heir.receive();
        names.extend(heir.port.take_due_wills().iter().map(|will| will.name));
    }
    names.sort_unstable();
    names
}

//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn wills_go_to_the_owner_and_the_owners_to_its_first_follower() {
    alone(|| {
        let (mut owner, follower, mut third) = (End::on("lo"), End::on("lo"), End::on("lo"));
        for name in 1..=3 {
            follower.port.leave_will(will(&follower, name));
        }
        follower.port.take_back_will(2);
        let changed = Will { message: [8; MAD_LEN], ..will(&follower, 3) };
        follower.port.leave_will(changed);
        assert_eq!(due(&mut owner, &mut [&mut third], 0), [], "nobody has ended");
        drop(follower);
        assert_eq!(due(&mut owner, &mut [&mut third], 2), [1, 3]);
        // The first follower has gone, so the next one has the owner's; left before that, too.
        owner.port.leave_will(will(&owner, 4));
        assert_eq!(due(&mut third, &mut [&mut owner], 0), []);
        drop(owner);
        assert_eq!(due(&mut third, &mut [], 1), [4]);
        // Which is the owner now.
        let last = End::on("lo");
        last.port.leave_will(will(&last, 5));
        drop(last);
        assert_eq!(due(&mut third, &mut [], 1), [5]);
    });
}

#[test]
fn wills_are_left_again_with_who_comes_next() {
    alone(|| {
        let (owner, mut second, third) = (End::on("lo"), End::on("lo"), End::on("lo"));
        third.port.leave_will(will(&third, 1));
        drop(owner);
        let (mut second_due, mut third) = (Vec::new(), third);
        let until = Instant::now() + PATIENCE;
        // Both race for the place: whoever has it hears the other's will.
        while second.port.counters().takeovers.load(std::sync::atomic::Ordering::Relaxed)
            + third.port.counters().takeovers.load(std::sync::atomic::Ordering::Relaxed)
            == 0
        {
            assert!(Instant::now() < until, "nobody takes over");
            second_due.extend(due(&mut second, &mut [&mut third], 0));
        }
        second_due.extend(due(&mut second, &mut [&mut third], 0));
        assert_eq!(second_due, []);
        drop(third);
        assert_eq!(due(&mut second, &mut [], 1), [1]);
    });
}
