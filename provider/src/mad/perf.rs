//! Answers about a port's performance counters: sums over all processes that have the device.
//!
//! Asking other processes may take a second (one that is stopped does not answer), and whoever receives must not wait. So
//! requests wait for a thread that is started for the first of them, and stays for a while: what it has found out is the
//! answer to those of the next moment as well, so requests without end cost neither threads nor questions without end.
//! Requests that need no counters are answered where they arrive.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use urxe_engine::mad::Address;
use urxe_engine::mad::perf::{Performance, Values};
use urxe_net::Destination;
use urxe_runtime::device::Device;
use urxe_runtime::sanitizer::Unchecked;
use urxe_runtime::threads::without_signals;
use urxe_runtime::{gsi, lock};
use urxe_wire::Psn;
use urxe_wire::mad::MAD_LEN;

use super::zeros;
use crate::status::sysfs;

/// Requests that may wait; what comes beyond is dropped, and asked again by its sender.
const ROOM: usize = 64;
/// How long the thread waits for another request before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// How long the counters' values are good for.
const FRESH: Duration = Duration::from_millis(100);
/// Room for the thread: it reads reports.
const STACK: usize = 256 * 1024;

/// Requests that wait for their answer.
pub(super) struct PerfWorker {
    device: Weak<Device>,
    queue: Arc<(Mutex<Queue>, Condvar)>,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<(Address, [u8; MAD_LEN])>,
    is_served: bool,
    /// The device is closed.
    is_over: bool,
    own: Performance,
}

impl PerfWorker {
    pub(super) fn new(device: &Arc<Device>) -> Self {
        Self { device: Arc::downgrade(device), queue: Arc::default() }
    }

    /// Takes a request, which is answered soon; false if there is no room.
    pub(super) fn ask(&self, from: &Address, request: &[u8; MAD_LEN]) -> bool {
        let (queue, arrival) = &*self.queue;
        let mut queue = lock(queue);
        if queue.requests.len() >= ROOM {
            return false;
        }
        queue.requests.push_back((*from, *request));
        if queue.is_served {
            arrival.notify_one();
            return true;
        }
        let (device, requests) = (Weak::clone(&self.device), Arc::clone(&self.queue));
        let serve = move || {
            let _unchecked = Unchecked::begin();
            serve(&device, &requests);
        };
        let thread = without_signals(|| thread::Builder::new().name("urxe-perf".into()).stack_size(STACK).spawn(serve));
        queue.is_served = thread.is_ok();
        if !queue.is_served {
            queue.requests.clear();
        }
        queue.is_served
    }
}

impl Drop for PerfWorker {
    fn drop(&mut self) {
        let (queue, arrival) = &*self.queue;
        lock(queue).is_over = true;
        arrival.notify_one();
    }
}

/// The next request, and the counters' zeros of this process; `None` if none comes: then the thread is to end.
fn next((queue, arrival): &(Mutex<Queue>, Condvar)) -> Option<(Address, [u8; MAD_LEN], Performance)> {
    let waits = |queue: &mut Queue| queue.requests.is_empty() && !queue.is_over;
    let waited = arrival.wait_timeout_while(lock(queue), IDLE, waits);
    let (mut queue, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some((from, request)) = queue.requests.pop_front() else {
        queue.is_served = false;
        return None;
    };
    Some((from, request, queue.own))
}

fn serve(device: &Weak<Device>, queue: &(Mutex<Queue>, Condvar)) {
    let mut known: Option<(Instant, Values)> = None;
    while let Some((from, request, own)) = next(queue) {
        let Some(device) = device.upgrade() else { continue };
        let name = device.device_name();
        let before = zeros::read(name, &own);
        let mut performance = before;
        let values = match known {
            Some((at, values)) if at.elapsed() < FRESH => values,
            _ => {
                let values = values(name);
                known = Some((Instant::now(), values));
                values
            }
        };
        let Some(answer) = performance.answer(&request, &values) else { continue };
        if performance != before {
            zeros::write(name, &performance);
            lock(&queue.0).own = performance;
        }
        let Address { local, remote, qpn, traffic_class, .. } = from;
        let to = Destination { local, remote, dest_qpn: qpn, flow_label: 0, tclass: traffic_class, hop_limit: 0 };
        device.with_work(|work| gsi::send_to(work, device.net(), Psn::default(), &to, &answer));
        // Through this process, if it owns the address.
        device.look();
    }
}

/// The counters of all processes that have the device, and of those that had it.
fn values(device: &str) -> Values {
    urxe_status::sysfs::performance(&sysfs::sums(device).unwrap_or_default())
}
