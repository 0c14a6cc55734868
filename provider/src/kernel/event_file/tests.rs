use std::fs::File;
use std::io::Read as _;

use urxe_ffi::verbs::{IBV_EVENT_COMM_EST, IBV_EVENT_QP_FATAL};

use super::*;

/// More than any socket holds at once.
const MANY: u64 = 20_000;

fn new() -> (EventFile, File) {
    let (events, application) = EventFile::new().unwrap();
    (events, File::from(application))
}

/// As `ibv_get_cq_event` does.
fn read_cq(file: &mut File) -> u64 {
    let mut record = [0; 8];
    assert_eq!(file.read(&mut record).unwrap(), record.len());
    u64::from_ne_bytes(record)
}

fn is_readable(file: &File) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn events_arrive_in_order_as_libibverbs_reads_them() {
    let (events, mut file) = new();
    assert!(!is_readable(&file));
    events.push(Event::Completion { cq: 0x1000 });
    events.push(Event::Completion { cq: 0x2000 });
    assert!(is_readable(&file));
    assert_eq!(read_cq(&mut file), 0x1000);
    assert_eq!(read_cq(&mut file), 0x2000);
    assert!(!is_readable(&file));

    events.push(Event::Async { element: 0x3000, event_type: IBV_EVENT_COMM_EST });
    let mut record = [0xaa; 16];
    assert_eq!(file.read(&mut record).unwrap(), 16);
    let expected = [&0x3000_u64.to_ne_bytes()[..], &IBV_EVENT_COMM_EST.to_ne_bytes(), &[0; 4]].concat();
    assert_eq!(record[..], expected);
}

#[test]
fn a_slow_reader_loses_nothing() {
    let (events, mut file) = new();
    for cq in 0..MANY {
        events.push(Event::Completion { cq });
    }
    for cq in 0..MANY {
        assert_eq!(read_cq(&mut file), cq);
        events.refill();
    }
    assert!(!is_readable(&file));
}

#[test]
fn only_what_was_not_read_is_taken_back() {
    let (events, mut file) = new();
    for cq in 0..MANY {
        events.push(Event::Completion { cq: cq % 2 });
    }
    assert_eq!(read_cq(&mut file), 0);
    assert_eq!(read_cq(&mut file), 1);
    assert_eq!(read_cq(&mut file), 0);
    let pushed = usize::try_from(MANY / 2).unwrap();
    assert_eq!(events.discard(0), pushed - 2);
    for _ in 0..pushed - 1 {
        assert_eq!(read_cq(&mut file), 1);
        events.refill();
    }
    assert!(!is_readable(&file));
    assert_eq!(events.discard(1), 0);
}

#[test]
fn asynchronous_events_are_taken_back_by_object() {
    let (events, mut file) = new();
    events.push(Event::Async { element: 0x1000, event_type: IBV_EVENT_COMM_EST });
    events.push(Event::Async { element: 0x2000, event_type: IBV_EVENT_QP_FATAL });
    events.push(Event::Async { element: 0x1000, event_type: IBV_EVENT_QP_FATAL });
    assert_eq!(events.discard(0x1000), 2);
    let mut record = [0; 16];
    assert_eq!(file.read(&mut record).unwrap(), 16);
    assert_eq!(Event::from_bytes(&record), Some(Event::Async { element: 0x2000, event_type: IBV_EVENT_QP_FATAL }));
    assert!(!is_readable(&file));
}
