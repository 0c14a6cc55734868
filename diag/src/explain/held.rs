//! Explanations that are printed only if the process fails.
//!
//! Of exit(3), or a return from `main`, with a status other than 0 on_exit(3) of glibc tells a library. Other ends call
//! [`tell_held`]: abort(3), failed assertions and `_exit` below `urxe run`, whose preloaded functions are in front of libc's, and
//! faults that the application does not handle. These may come from a signal handler, which has interrupted anything, and `_exit`
//! from a child that shares its parent's memory (vfork(2)). So the texts are a list that is read without a lock, grows at its end
//! only and is never freed.

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::iter::successors;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use urxe_options::Format;
use urxe_runtime::fork_safe_mutex::without_fork;

use super::faults;
use crate::messages;

/// Explanations that a person reads: the first ones tell the cause, later ones are consequences.
const MOST: usize = 32;

/// An explanation that is held back.
struct Held {
    /// Process that holds it; a forked child has a copy, and nothing to say about it.
    process: u32,
    text: String,
    /// The text has been printed, or is about to be: several threads may fail together, and a signal that was raised may end nothing.
    is_told: AtomicBool,
    /// Later explanations of the process, which are not kept.
    left_out: AtomicUsize,
    next: Place,
}

/// The end of the list, or the next element.
type Place = OnceLock<Box<Held>>;

static FIRST: Place = Place::new();

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Has what is held back printed if the process fails.
pub(super) fn register() {
    static REGISTERED: Once = Once::new();
    // SAFETY: a function that stays loaded. It fails only without memory; then nothing is printed.
    REGISTERED.call_once(|| unsafe {
        on_exit(print, std::ptr::null_mut());
    });
}

/// Keeps an explanation until the process ends.
pub(super) fn hold(text: String) {
    register();
    let process = std::process::id();
    let mut new = Box::new(Held {
        process,
        text,
        is_told: AtomicBool::new(false),
        left_out: AtomicUsize::new(0),
        next: Place::new(),
    });
    // A child never finds the end of the list being written.
    without_fork(|| {
        let (mut place, mut own) = (&FIRST, 0);
        loop {
            let Some(held) = place.get() else {
                match place.set(new) {
                    Ok(()) => return,
                    // Another thread was quicker.
                    Err(back) => new = back,
                }
                continue;
            };
            own += usize::from(held.process == process);
            if own == MOST {
                held.left_out.fetch_add(1, Ordering::Relaxed);
                return;
            }
            place = &held.next;
        }
    });
}

/// Writes the texts of this process, each once.
fn tell(to: &mut impl Write) -> fmt::Result {
    let process = std::process::id();
    let all = successors(FIRST.get(), |held| held.next.get());
    for held in all.filter(|held| held.process == process) {
        if held.is_told.swap(true, Ordering::Relaxed) {
            continue;
        }
        to.write_str(&held.text)?;
        let left_out = held.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            writeln!(to, "urxe: {left_out} more explanations; URXE_EXPLAIN=1 prints all, as they happen")?;
        }
    }
    Ok(())
}

/// Prints what is held back, as the process is about to fail. A signal handler may be the caller.
pub fn tell_held() {
    struct Direct;
    impl Write for Direct {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            messages::print_from_handler(text);
            Ok(())
        }
    }
    // Printing does not fail.
    let _ = tell(&mut Direct);
}

/// Prints the texts, if the process fails.
extern "C" fn print(status: c_int, _argument: *mut c_void) {
    // The bits that exit(3) passes on to a parent.
    if status & 0xff == 0 {
        return;
    }
    let _ = catch_unwind(|| {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = tell(&mut text);
        text += &faults::summary(Format::Held);
        messages::print(&text);
    });
}
