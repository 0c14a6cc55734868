//! Scheduling of the application's threads: a device is a guest, and leaves it as it is.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urxe_engine::{SendOp, WcStatus};

use crate::direct;
use crate::node::{Node, in_namespace};

/// Scheduling of a thread, as far as the kernel tells it.
#[derive(Debug, PartialEq)]
struct Scheduling {
    /// Processors that it may run on.
    cpus: Vec<usize>,
    /// `struct sched_attr` (sched_getattr(2)): policy, flags, nice value, priority and times.
    attr: [u64; 7],
    timer_slack: i32,
}

impl Scheduling {
    /// Scheduling of the calling thread.
    fn own() -> Self {
        // SAFETY: all-zero is a value of this plain set.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: a set of the size it says.
        assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }, 0);
        let mut attr = [0_u64; 7];
        // SAFETY: room of the size it says.
        let told = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size_of_val(&attr), 0) };
        assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
        let all = 0..usize::try_from(libc::CPU_SETSIZE).unwrap();
        Self {
            // SAFETY: numbers that the set has room for.
            cpus: all.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect(),
            attr,
            // SAFETY: plain numbers.
            timer_slack: unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) },
        }
    }
}

/// Lets the calling thread run on these processors only.
fn run_on(cpus: &[usize]) {
    // SAFETY: all-zero is a value of this plain set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for cpu in cpus {
        // SAFETY: a number that the kernel has told.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: a set of the size it says.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }, 0);
}

/// Polls, in vain and not, beside threads that want the processor: they spin, yield and park.
fn poll(a: &Node, b: &Node) {
    for _ in 0..100 {
        a.device.polled(false);
    }
    for _ in 0..10 {
        a.post_send(SendOp::Write(b.remote(0)), 0, 8);
        assert_eq!(a.completion().status, WcStatus::Success);
    }
    a.device.polled(true);
    a.device.stopped_polling();
}

/// Ends the threads that spin, whatever becomes of the test.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Wants a processor until it is stopped.
fn spin(cpus: &[usize], stop: &AtomicBool) {
    run_on(cpus);
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// A parked poll watches the sockets of other devices that are polled, and these may be closed meanwhile.
#[test]
fn polls_park_beside_devices_that_are_closed() {
    in_namespace(|| {
        let given = Scheduling::own();
        let own = Node::new(1, true);
        let one = [*given.cpus.last().unwrap()];
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stop);
            (0..2).for_each(|_| drop(scope.spawn(|| spin(&one, &stop))));
            let closer = scope.spawn(|| {
                for seed in 2..22 {
                    let beside = Node::new(seed, true);
                    let until = Instant::now() + Duration::from_millis(3);
                    while Instant::now() < until {
                        beside.device.polled(false);
                    }
                }
            });
            run_on(&one);
            while !closer.is_finished() {
                own.device.polled(false);
            }
            closer.join().unwrap();
            run_on(&given.cpus);
        });
        let peer = Node::new(22, true);
        own.connect(peer.qp.qpn());
        peer.connect(own.qp.qpn());
        own.post_send(SendOp::Write(peer.remote(0)), 0, 8);
        assert_eq!(own.completion().status, WcStatus::Success);
    });
}

/// Polls by turns beside threads that spin on one processor, and on any, and looks at the scheduling of their thread each time.
fn leave_alone(a: &Node, b: &Node, given: &Scheduling) {
    let one = [*given.cpus.last().unwrap()];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        (0..2).for_each(|_| drop(scope.spawn(|| spin(&one, &stop))));
        poll(a, b);
        assert_eq!(Scheduling::own(), *given);
        // Beside the threads that spin, and on any processor again.
        for cpus in [&one[..], &given.cpus] {
            run_on(cpus);
            poll(a, b);
            let Scheduling { attr, timer_slack, .. } = *given;
            assert_eq!(Scheduling::own(), Scheduling { cpus: cpus.to_vec(), attr, timer_slack });
        }
    });
}

#[test]
fn polls_leave_the_scheduling_of_their_thread_alone() {
    in_namespace(|| {
        let given = Scheduling::own();
        let (a, b) = (Node::new(1, true), Node::new(2, true));
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        leave_alone(&a, &b, &given);
    });
}

/// Memory that is shared and given back, and requests that go straight to it, leave it alone as well.
#[test]
fn direct_requests_leave_the_scheduling_of_their_thread_alone() {
    in_namespace(|| {
        let given = Scheduling::own();
        let (a, b) = direct::connected();
        assert_eq!(Scheduling::own(), given, "by a registration");
        let before = a.count("direct_requests");
        leave_alone(&a, &b, &given);
        assert!(a.count("direct_requests") > before, "all went by packets");
        drop((a, b));
        assert_eq!(Scheduling::own(), given, "by the end of a registration");
    });
}
