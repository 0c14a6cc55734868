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

/// Reads an event as `ibv_get_cq_event` does.
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

/// Events of the port that nobody reads take no memory without end, and end with the last state.
#[test]
fn events_of_the_port_do_not_pile_up() {
    let (events, mut file) = new();
    let event = |event_type: EventType| Event::Async { element: 1, event_type: event_type as u32 };
    let types = [EventType::ClientReregister, EventType::SmChange, EventType::PortActive, EventType::PortError];
    for number in 0..usize::try_from(MANY).unwrap() {
        events.push(event(types[number % types.len()]));
    }
    assert_eq!(events.backlog.lock().unwrap().len(), types.len());
    // Others wait, all of them.
    for _ in 0..MANY {
        events.push(Event::Async { element: 0x1000, event_type: IBV_EVENT_QP_FATAL });
    }
    events.push(event(EventType::PortActive));
    assert_eq!(events.backlog.lock().unwrap().len(), types.len() + usize::try_from(MANY).unwrap());
    let mut read = Vec::new();
    while is_readable(&file) {
        let mut record = [0; ASYNC];
        assert_eq!(file.read(&mut record).unwrap(), ASYNC);
        read.push(Event::from_bytes(&record).unwrap());
        events.refill();
    }
    let of_port: Vec<_> = read.iter().filter(|event| event.is_of_port()).rev().take(4).collect();
    let last = [EventType::PortActive, EventType::PortError, EventType::SmChange, EventType::ClientReregister];
    assert!(of_port.into_iter().copied().eq(last.map(event)), "each type once more, the last state last");
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

#[test]
fn event_types_have_the_numbers_of_libibverbs() {
    use urxe_ffi::verbs as v;
    use urxe_runtime::event::EventType;
    let numbers = [
        (EventType::CqError, v::IBV_EVENT_CQ_ERR),
        (EventType::QpFatal, IBV_EVENT_QP_FATAL),
        (EventType::QpRequestError, v::IBV_EVENT_QP_REQ_ERR),
        (EventType::QpAccessError, v::IBV_EVENT_QP_ACCESS_ERR),
        (EventType::CommunicationEstablished, IBV_EVENT_COMM_EST),
        (EventType::SqDrained, v::IBV_EVENT_SQ_DRAINED),
        (EventType::PathMigrated, v::IBV_EVENT_PATH_MIG),
        (EventType::PathMigrationError, v::IBV_EVENT_PATH_MIG_ERR),
        (EventType::DeviceFatal, v::IBV_EVENT_DEVICE_FATAL),
        (EventType::PortActive, v::IBV_EVENT_PORT_ACTIVE),
        (EventType::PortError, v::IBV_EVENT_PORT_ERR),
        (EventType::LidChange, v::IBV_EVENT_LID_CHANGE),
        (EventType::PkeyChange, v::IBV_EVENT_PKEY_CHANGE),
        (EventType::SmChange, v::IBV_EVENT_SM_CHANGE),
        (EventType::SrqError, v::IBV_EVENT_SRQ_ERR),
        (EventType::SrqLimitReached, v::IBV_EVENT_SRQ_LIMIT_REACHED),
        (EventType::LastWqeReached, v::IBV_EVENT_QP_LAST_WQE_REACHED),
        (EventType::ClientReregister, v::IBV_EVENT_CLIENT_REREGISTER),
        (EventType::GidChange, v::IBV_EVENT_GID_CHANGE),
        (EventType::WqFatal, v::IBV_EVENT_WQ_FATAL),
    ];
    assert_eq!(numbers.map(|(event_type, _)| event_type), EventType::ALL);
    assert!(numbers.iter().all(|(event_type, number)| *event_type as u32 == *number));
}

#[test]
fn another_file_under_the_number_of_a_closed_one_is_not_given_away() {
    let (events, _file) = new();
    assert!(events.another_end().is_ok());
    let other = File::open("/dev/null").unwrap();
    let raw = events.receiver.as_raw_fd();
    // SAFETY: replaces what is under a number that nobody but `events` knows.
    assert_eq!(unsafe { libc::dup3(other.as_raw_fd(), raw, libc::O_CLOEXEC) }, raw);
    assert_eq!(events.another_end().err(), Some(Errno(libc::EBADF)));
    // SAFETY: `events` does not close what is not its own.
    unsafe { libc::close(raw) };
}
