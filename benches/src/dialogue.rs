//! SENDs to and fro between two threads of one process, each with queue pairs and completion queues of its own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use anyhow::{Context as _, Result};
use urxe_tests::verbs::scale::Wait;
use urxe_tests::verbs::{Context, End, Mr, Op, Options, RecvWr, SendWr};

/// Bytes of a message.
const BYTES: usize = 8;
/// Receives that are posted at a time.
const RECEIVES: usize = 64;
/// Completed SENDs that are taken at a time.
const MANY: usize = 16;

/// Microseconds from one thread to the other, of so many messages each way.
///
/// # Errors
/// A verb fails, or a message.
///
/// # Panics
/// If one of the threads does.
pub fn microseconds(wait: Wait, messages: usize) -> Result<f64> {
    let context = Context::open()?;
    let barrier = Barrier::new(2);
    let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
    let speak = |begins: bool, tell: Sender<u32>, hear: Receiver<u32>| {
        let speaker = Speaker::new(&context, wait, tell, hear);
        barrier.wait();
        speaker?.speak(begins, messages)
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| speak(false, to_first, from_first));
        let micros = speak(true, to_second, from_second);
        second.join().expect("a thread panicked")?;
        micros
    })
}

struct Speaker {
    end: End,
    mr: Mr,
    wait: Wait,
}

impl Speaker {
    /// Connects with the other, and is ready for its messages. The channels end with it, so who fails does not keep the other waiting.
    #[expect(clippy::needless_pass_by_value, reason = "they end here")]
    fn new(context: &Arc<Context>, wait: Wait, tell: Sender<u32>, hear: Receiver<u32>) -> Result<Self> {
        let options = Options { events: wait == Wait::Sleeps, ..Options::default() };
        let end = End::new(context, &options)?;
        tell.send(end.qp.number()).context("the other thread has failed")?;
        let peer = hear.recv().context("the other thread has failed")?;
        end.connect(peer, end.gid(&options)?, &options)?;
        let mr = end.region(4096)?;
        let speaker = Self { end, mr, wait };
        (0..RECEIVES).try_for_each(|_| speaker.receive())?;
        Ok(speaker)
    }

    fn receive(&self) -> Result<()> {
        Ok(self.end.qp.post_recv(&RecvWr::new(0, &[self.mr.sge(0, BYTES)]))?)
    }

    fn send(&self) -> Result<()> {
        Ok(self.end.qp.post_send(&SendWr::new(Op::Send, &[self.mr.sge(2048, BYTES)]))?)
    }

    fn wait_for_event(&self) -> Result<()> {
        self.end.channel.as_ref().context("no channel")?.event()?;
        self.end.recv_cq.acknowledge_events(1);
        Ok(())
    }

    /// Whether a message has come.
    fn heard(&self) -> Result<bool> {
        Ok(!self.end.recv_cq.poll(1)?.is_empty())
    }

    fn speak(&self, begins: bool, messages: usize) -> Result<f64> {
        let began = Instant::now();
        if begins {
            self.send()?;
        }
        for _ in 0..messages {
            while !self.heard()? {
                if self.wait == Wait::Sleeps {
                    self.end.recv_cq.arm(false)?;
                    if self.heard()? {
                        break;
                    }
                    self.wait_for_event()?;
                }
            }
            self.receive()?;
            self.send()?;
            self.end.send_cq.poll(MANY)?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / (2 * messages) as f64)
    }
}
