//! A child of fork(2) has no device.
//!
//! Only the forking thread lives on in the child; locks may be held there for ever, and the sockets belong to the
//! parent. So the child closes its copies (names and ports must vanish with the parent) and verbs calls on what
//! it inherited fail with EIO, but for those that need nothing of it (`ibv_query_device_ex`, device memory). It may
//! open the device anew.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock};

use super::device::{self, Device};
use super::{fork_safe_mutex, lock};
use crate::memory::shared_pages;
use crate::progress::several_devices;

/// How many forks away from the process that loaded us: what was made at another generation is dead.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Devices open in this process. Held over a fork, so that the child finds it whole.
static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// A device is being opened; taken before [`DEVICES`].
static OPENING: Mutex<()> = Mutex::new(());

/// Identity of the process that tells a child of fork(2) from its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation(u32);

impl Generation {
    /// Returns the identity of the calling process.
    pub fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }
}

/// Functions of the embedding library that run when the process forks or ends.
#[derive(Debug)]
pub struct Hooks {
    /// Runs when the program ends, before the final counters are reported.
    pub at_exit: fn(),
    /// Runs when the program ends, after everything that other processes wait for.
    pub at_last: fn(),
    /// Runs in the child of a fork(2); takes no lock and allocates nothing.
    pub in_child: fn(),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

static IS_INTERRUPTED: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the function that tells whether a call of the library is under way in the calling thread. When a signal handler ends the program then,
/// what the call has locked stays so. Only the first call of a process counts.
pub fn set_is_interrupted(is_interrupted: fn() -> bool) {
    let _ = IS_INTERRUPTED.set(is_interrupted);
}

/// Sets the hooks; only the first call of a process counts.
pub fn set_hooks(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

/// Notices forks from now on. Has to come before libibverbs' calls are diverted, for some lead to a [`fork_safe_mutex`].
pub fn notice() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: three functions of the right type that stay loaded. It fails only without memory; then children
        // keep the parent's sockets open.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

/// Remembers a device, to be closed in children.
pub fn remember(device: &Arc<Device>) {
    static ENDS: Once = Once::new();
    notice();
    ENDS.call_once(|| {
        // SAFETY: a function that stays loaded. It fails only without memory.
        unsafe { libc::atexit(at_exit) };
    });
    let mut devices = lock(&DEVICES);
    devices.push(Arc::clone(device));
    if devices.len() > 1 {
        several_devices::note_several();
    }
}

/// Returns other devices of the process that satisfy a condition, the first `N`; none while one is opened or closed. Allocates nothing: a
/// signal handler may call.
pub(crate) fn others<const N: usize>(device: &Device, wanted: impl Fn(&Device) -> bool) -> [Option<Arc<Device>>; N] {
    let mut found = [const { None }; N];
    if several_devices::are_several()
        && let Ok(devices) = DEVICES.try_lock()
    {
        let others = devices.iter().filter(|other| !std::ptr::eq(Arc::as_ptr(other), device) && wanted(other));
        for (place, other) in found.iter_mut().zip(others) {
            *place = Some(Arc::clone(other));
        }
    }
    found
}

/// Closes a device and forgets it; no fork comes in between.
pub fn close(device: &Arc<Device>) {
    let mut devices = lock(&DEVICES);
    device.close();
    devices.retain(|other| !Arc::ptr_eq(other, device));
}

/// Puts off forks until the result is dropped: in a child a device that is half open would stay so for ever.
pub fn put_off() -> MutexGuard<'static, ()> {
    lock(&OPENING)
}

/// Puts off forks as [`put_off`] does, but never waits. `None` while somebody opens a device or forks.
pub fn try_put_off() -> Option<MutexGuard<'static, ()>> {
    OPENING.try_lock().ok()
}

/// Locks that the forking thread holds over a fork. The list of devices is released first.
type Held = (MutexGuard<'static, Vec<Arc<Device>>>, MutexGuard<'static, ()>, fork_safe_mutex::Kept);

thread_local! {
    /// Empty but during a fork. It has no destructor, for one would be registered under the loader's lock (see [`PerThread`]).
    ///
    /// [`PerThread`]: crate::per_thread::PerThread
    static HELD: Cell<ManuallyDrop<Option<Held>>> = const { Cell::new(ManuallyDrop::new(None)) };
}

/// Stores what the forking thread holds from now on, and returns what it held.
fn hold(locks: Option<Held>) -> Option<Held> {
    ManuallyDrop::into_inner(HELD.replace(ManuallyDrop::new(locks)))
}

/// The program ends: what has come for other processes is theirs still.
extern "C" fn at_exit() {
    // Called by C.
    let _ = catch_unwind(at_end);
}

fn at_end() {
    if IS_INTERRUPTED.get().is_some_and(|is_interrupted| is_interrupted()) {
        // The peers send again what is left in the sockets.
        return;
    }
    let devices: Vec<Arc<Device>> = DEVICES.try_lock().map(|devices| devices.clone()).unwrap_or_default();
    for device in devices.iter().filter(|device| !device.net().has_lost_descriptors()) {
        device.pass_on();
    }
    if let Some(hooks) = HOOKS.get() {
        (hooks.at_exit)();
    }
    for device in &devices {
        device.settle();
    }
    if let Some(hooks) = HOOKS.get() {
        (hooks.at_last)();
    }
}

extern "C" fn prepare() {
    let opening = put_off();
    let devices = lock(&DEVICES);
    hold(Some((devices, opening, fork_safe_mutex::keep_all())));
    shared_pages::before_fork();
}

extern "C" fn parent() {
    shared_pages::after_fork();
    drop(hold(None));
}

//= spec/hosts.md#net-007
//# The child of a fork MUST have no part in its parent's device.
extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    shared_pages::in_child();
    device::free_places_in_child();
    if let Some(hooks) = HOOKS.get() {
        (hooks.in_child)();
    }
    if let Some((mut devices, _opening, _tables)) = hold(None) {
        for device in devices.drain(..) {
            device.close_in_child();
            // Its locks may be held by threads that are not here: never to be touched again, not even by a drop.
            std::mem::forget(device);
        }
    }
}
