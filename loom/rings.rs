//! The rings of `urxe-net` ([`ring`]).
//!
//! The ring here has four lines, so that a few runs go around it, and memory that notices when a byte is read and written
//! at the same time.

#[allow(dead_code, reason = "the provider's needs are more than a model's")]
#[path = "../net/src/shm/ring.rs"]
mod ring;

use super::explore;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use ring::{Consumer, HEADER, Producer, RingRecord, SIZE, Storage, barrier};

const LINE: usize = 64;
const KEY: u64 = 0x1234_5678_9ABC_DEF1;

/// State that both sides share.
struct Shared {
    head: AtomicU64,
    doorbell: AtomicU32,
    headers: Vec<(AtomicU64, AtomicU64)>,
    /// Bytes behind each header: no run here is longer than its line.
    lines: Vec<UnsafeCell<[u8; LINE - HEADER]>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let lines = SIZE / LINE;
        Arc::new(Self {
            head: AtomicU64::new(0),
            doorbell: AtomicU32::new(0),
            headers: (0..lines).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect(),
            lines: (0..lines).map(|_| UnsafeCell::new([0; LINE - HEADER])).collect(),
        })
    }
}

impl Storage for Arc<Shared> {
    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn doorbell(&self) -> &AtomicU32 {
        &self.doorbell
    }

    fn header(&self, offset: usize) -> (&AtomicU64, &AtomicU64) {
        let (stamp, descriptor) = &self.headers[offset / LINE];
        (stamp, descriptor)
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: loom fails the model if anybody else is at it.
        self.lines[offset / LINE].with_mut(|line| unsafe { (&mut *line)[..bytes.len()].copy_from_slice(bytes) });
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) {
        // SAFETY: as above.
        self.lines[offset / LINE].with(|line| unsafe { bytes.copy_from_slice(&(&*line)[..bytes.len()]) });
    }
}

fn sides() -> (Producer<Arc<Shared>>, Consumer<Arc<Shared>>) {
    let shared = Shared::new();
    (Producer::new(Arc::clone(&shared), KEY), Consumer::new(shared, KEY))
}

fn push(producer: &mut Producer<Arc<Shared>>, number: u8) -> bool {
    producer.push(&[number; 20], RingRecord { len: 20, segment: 20, has_icrc: false }, true)
}

/// The number of the next run, checked.
fn pop(consumer: &mut Consumer<Arc<Shared>>) -> Option<u8> {
    let mut buffer = [0; 64];
    let run = consumer.pop(&mut buffer).expect("nothing is damaged")?;
    assert_eq!(run, RingRecord { len: 20, segment: 20, has_icrc: false });
    assert!(buffer[..20].iter().all(|byte| *byte == buffer[0]), "torn: {:?}", &buffer[..20]);
    Some(buffer[0])
}

/// Six runs through four lines: in order and whole, and no line is written to before it has been read.
#[test]
fn a_ring_that_goes_around() {
    explore(|| {
        let (mut producer, mut consumer) = sides();
        let sender = thread::spawn(move || {
            for number in 1..=6 {
                while !push(&mut producer, number) {
                    thread::yield_now();
                }
            }
        });
        for expected in 1..=6 {
            loop {
                match pop(&mut consumer) {
                    Some(number) => break assert_eq!(number, expected),
                    None => thread::yield_now(),
                }
            }
        }
        assert!(consumer.is_empty());
        sender.join().unwrap();
    });
}

/// The bytes on the connection, and waiting for one.
#[derive(Default)]
struct Connection {
    bytes: Mutex<usize>,
    readable: Condvar,
}

impl Connection {
    fn ring(&self) {
        *self.bytes.lock().unwrap() += 1;
        self.readable.notify_one();
    }

    fn discard(&self) {
        *self.bytes.lock().unwrap() = 0;
    }

    fn wait(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        while *bytes == 0 {
            bytes = self.readable.wait(bytes).unwrap();
        }
    }
}

/// A receiver that sleeps whenever nothing is there gets all runs. A wake-up that is lost is a deadlock, which loom finds.
fn sleeper(runs: u8, poller: bool) {
    let (mut producer, mut consumer) = sides();
    producer.begin();
    let connection = Arc::new(Connection::default());
    let sender = {
        let connection = Arc::clone(&connection);
        thread::spawn(move || {
            for number in 1..=runs {
                while !push(&mut producer, number) {
                    thread::yield_now();
                }
                if producer.must_ring() {
                    connection.ring();
                }
            }
        })
    };
    let mut next = 1;
    let take = |consumer: &mut Consumer<Arc<Shared>>, next: &mut u8| {
        while let Some(number) = pop(consumer) {
            assert_eq!(number, *next);
            *next += 1;
        }
    };
    // An application that polls takes what it finds, and neither arms nor reads the connection; then it polls no more.
    if poller {
        take(&mut consumer, &mut next);
    }
    while next <= runs {
        connection.wait();
        let mut rang = true;
        loop {
            take(&mut consumer, &mut next);
            // As `Inbox::arm` does.
            if std::mem::take(&mut rang) || !consumer.is_armed() {
                connection.discard();
                consumer.arm();
                barrier();
            }
            if consumer.is_empty() {
                break;
            }
        }
    }
    sender.join().unwrap();
}

#[test]
fn no_wake_up_is_lost() {
    explore(|| sleeper(3, false));
}

#[test]
fn nor_by_an_application_that_stops_polling() {
    explore(|| sleeper(3, true));
}
