//! Explanations that are printed only if the process fails: it calls exit(3), or returns from `main`, with a status other
//! than 0.
//!
//! Only on_exit(3) of glibc tells a library of the status. A process that a signal ends, or that calls `_exit`, takes what is
//! held back with it.

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use urxe_options::Format;
use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

use super::faults;
use crate::messages;

/// Explanations that a person reads: the first ones tell the cause, later ones are consequences.
const MOST: usize = 32;

/// Texts of the process that holds them back; a forked child has a copy, and nothing to say about it.
#[derive(Default)]
struct Held {
    process: u32,
    texts: Vec<String>,
    left_out: usize,
}

static HELD: ForkSafeMutex<Held> = ForkSafeMutex::new(Held { process: 0, texts: Vec::new(), left_out: 0 });
/// A thread is at it: a signal handler that exits may have interrupted that thread.
static IS_IN_USE: AtomicBool = AtomicBool::new(false);

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
    let this = std::process::id();
    IS_IN_USE.store(true, Ordering::Release);
    HELD.with(|held| {
        if held.process != this {
            *held = Held { process: this, ..Held::default() };
        }
        if held.texts.len() < MOST {
            held.texts.push(text);
        } else {
            held.left_out += 1;
        }
    });
    IS_IN_USE.store(false, Ordering::Release);
}

/// Prints the texts, if the process fails.
extern "C" fn print(status: c_int, _argument: *mut c_void) {
    // The bits that exit(3) passes on to a parent.
    if status & 0xff == 0 || IS_IN_USE.load(Ordering::Acquire) {
        return;
    }
    let _ = catch_unwind(|| {
        let this = std::process::id();
        let held = HELD.with(|held| if held.process == this { std::mem::take(held) } else { Held::default() });
        let mut text = held.texts.concat();
        if held.left_out > 0 {
            text += &format!("urxe: {} more explanations; URXE_EXPLAIN=1 prints all, as they happen\n", held.left_out);
        }
        text += &faults::summary(Format::Held);
        messages::print(&text);
    });
}
