//! The environment by which a program and its children find the devices: children get it back that have lost it.
//!
//! `env -i PROGRAM`, or a program that sets `LD_PRELOAD` to its own value, would lose the devices without a word. A program
//! that is started with an empty `URXE_RUN` has been started without them on purpose.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::folder::is_active;
use crate::pointer;

const RUN: &[u8] = b"URXE_RUN=";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Prefix of the names of all variables of urxe.
const OURS: &[u8] = b"URXE_";

/// Room for an environment that gets ours back.
///
/// On the stack: this may be a child that shares its parent's memory (vfork), in which nobody would give memory back.
struct Room<const MOST: usize, const PRELOAD_MAX: usize> {
    /// Pointers to the variables, and null.
    list: [*const c_char; MOST],
    /// `LD_PRELOAD` and its value.
    preload: [u8; PRELOAD_MAX],
}

impl<const MOST: usize, const PRELOAD_MAX: usize> Room<MOST, PRELOAD_MAX> {
    const fn new() -> Self {
        Self { list: [core::ptr::null(); MOST], preload: [0; PRELOAD_MAX] }
    }
}

/// Enough for most, and small enough for the stack of any thread.
type Usual = Room<128, 512>;
/// The most variables that a program can have and get ours back.
type Most = Room<1024, 4096>;

static LOST: &CStr =
    c"urxe: warning: a program is started without urxe's devices: its environment is too large to add them\n";

static CHANGED: &CStr =
    c"urxe: warning: system(3) or popen(3) starts a program without urxe's devices: this program has changed \
    LD_PRELOAD or URXE_RUN\n";
/// Whether [`CHANGED`] was said.
static IS_SAID: AtomicBool = AtomicBool::new(false);

/// Variables of urxe as they were when this program began, in copies: a program may write over its environment.
static VARIABLES: [AtomicPtr<c_char>; 48] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 48];
/// The library as `LD_PRELOAD` named it.
static LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The variables of this program as they are now.
pub(crate) fn own() -> *const *const c_char {
    // SAFETY: libc's own variable.
    unsafe { environ }
}

/// Keeps what children may lose. To be called before the program can have changed it.
pub(crate) fn remember() {
    let mut slots = VARIABLES.iter();
    // SAFETY: the environment of this program, and copies that are never given back.
    unsafe {
        for variable in variables(own()) {
            let bytes = CStr::from_ptr(variable).to_bytes();
            if bytes.starts_with(OURS) {
                if let Some(slot) = slots.next() {
                    slot.store(libc::strdup(variable), Ordering::Release);
                }
            } else if let Some(library) = bytes.strip_prefix(PRELOAD).and_then(library) {
                LIBRARY.store(libc::strndup(library.as_ptr().cast(), library.len()), Ordering::Release);
            }
        }
    }
}

/// Whether a list and its variables can be read, as far as a look at their beginnings tells.
///
/// # Safety
/// The readable part must stay mapped meanwhile.
unsafe fn is_readable(all: *const *const c_char) -> bool {
    let mut slot = all;
    loop {
        if !pointer::is_readable(slot, size_of_val(&slot)) {
            return false;
        }
        // SAFETY: it can be read.
        let variable = unsafe { slot.read() };
        if variable.is_null() {
            return true;
        }
        if !pointer::is_readable(variable, 1) {
            return false;
        }
        slot = slot.wrapping_add(1);
    }
}

/// The variables of an environment.
///
/// # Safety
/// `all` is null or a list of C strings that ends with null.
unsafe fn variables(all: *const *const c_char) -> impl Iterator<Item = *const c_char> {
    let mut index = 0;
    core::iter::from_fn(move || {
        if all.is_null() {
            return None;
        }
        // SAFETY: the caller's promise: nothing before this was the end.
        let variable = unsafe { *all.add(index) };
        index += 1;
        (!variable.is_null()).then_some(variable)
    })
}

/// Finds urxe's library among those of `LD_PRELOAD`'s value, by its file name.
fn library(value: &[u8]) -> Option<&[u8]> {
    let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next() == Some(b"liburxe.so");
    value.split(|byte| matches!(byte, b':' | b' ')).find(|path| name(path))
}

/// Parts of an environment that are present.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    run: bool,
    library: bool,
    is_refused: bool,
}

/// # Safety
/// As [`variables`].
unsafe fn look(all: *const *const c_char) -> Found {
    let mut found = Found { run: false, library: false, is_refused: false };
    // SAFETY: the caller's promise.
    for variable in unsafe { variables(all) } {
        // SAFETY: as above.
        let bytes = unsafe { CStr::from_ptr(variable) }.to_bytes();
        found.run |= bytes.starts_with(RUN);
        found.is_refused |= bytes == RUN;
        found.library |= bytes.strip_prefix(PRELOAD).is_some_and(|value| library(value).is_some());
    }
    found
}

/// Calls `then` with the environment that a child is to have.
///
/// # Safety
/// As [`variables`].
pub(crate) unsafe fn given_back<T>(all: *const *const c_char, then: impl FnOnce(*const *const c_char) -> T) -> T {
    if !is_active() || LIBRARY.load(Ordering::Acquire).is_null() {
        return then(all);
    }
    // SAFETY: the caller's promise.
    if !all.is_null() && all != own() && !unsafe { is_readable(all) } {
        return then(all);
    }
    // SAFETY: the caller's promise.
    let found = unsafe { look(all) };
    if found.is_refused || (found.run && found.library) {
        return then(all);
    }
    // SAFETY: as above.
    unsafe { with_usual(all, found, then) }
}

/// Says once that a child, which gets the environment of this program, will have no devices, if that has lost the variables.
pub(crate) fn warn_if_lost() {
    if !is_active() || LIBRARY.load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: the environment of this program.
    let found = unsafe { look(own()) };
    if found.is_refused || (found.run && found.library) {
        return;
    }
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        crate::standard_error::write(CHANGED.to_bytes());
    }
}

/// # Safety
/// As [`variables`].
#[cold]
#[inline(never)]
unsafe fn with_usual<T>(all: *const *const c_char, found: Found, then: impl FnOnce(*const *const c_char) -> T) -> T {
    let mut room = Usual::new();
    // SAFETY: the caller's promise.
    match unsafe { fill(&mut room, all, found) } {
        Some(()) => then(room.list.as_ptr()),
        // SAFETY: as above.
        None => unsafe { with_most(all, found, then) },
    }
}

/// # Safety
/// As [`variables`].
#[cold]
#[inline(never)]
unsafe fn with_most<T>(all: *const *const c_char, found: Found, then: impl FnOnce(*const *const c_char) -> T) -> T {
    let mut room = Most::new();
    // SAFETY: the caller's promise.
    if unsafe { fill(&mut room, all, found) }.is_none() {
        crate::standard_error::write(LOST.to_bytes());
        return then(all);
    }
    then(room.list.as_ptr())
}

/// The environment with what it has lost; `None` if it is too large.
///
/// # Safety
/// As [`variables`].
unsafe fn fill<const MOST: usize, const PRELOAD_MAX: usize>(
    Room { list, preload }: &mut Room<MOST, PRELOAD_MAX>,
    all: *const *const c_char,
    found: Found,
) -> Option<()> {
    // The last stays null.
    let mut to = list.iter_mut().take(MOST - 1);
    let mut others: &[u8] = b"";
    // SAFETY: the caller's promise.
    for variable in unsafe { variables(all) } {
        // SAFETY: as above.
        let bytes = unsafe { CStr::from_ptr(variable) }.to_bytes();
        match bytes.strip_prefix(PRELOAD) {
            Some(value) if !found.library => others = value,
            _ => *to.next()? = variable,
        }
    }
    if !found.library {
        // SAFETY: a copy that `remember` made.
        let library = unsafe { CStr::from_ptr(LIBRARY.load(Ordering::Acquire)) }.to_bytes();
        let separator: &[u8] = if others.is_empty() { b"" } else { b":" };
        let mut room = preload.iter_mut();
        for byte in PRELOAD.iter().chain(library).chain(separator).chain(others).chain(b"\0") {
            *room.next()? = *byte;
        }
        *to.next()? = preload.as_ptr().cast();
    }
    if !found.run {
        for slot in &VARIABLES {
            let variable = slot.load(Ordering::Acquire);
            // SAFETY: a copy that `remember` made; the caller's promise.
            if !variable.is_null() && !unsafe { has(all, variable) } {
                *to.next()? = variable;
            }
        }
    }
    Some(())
}

/// Whether an environment has a variable of the same name.
///
/// # Safety
/// As [`variables`]; `variable` is a C string.
unsafe fn has(all: *const *const c_char, variable: *const c_char) -> bool {
    let name = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
    // SAFETY: the caller's promise.
    unsafe {
        let wanted = CStr::from_ptr(variable).to_bytes();
        let wanted = wanted.get(..=name(wanted)).unwrap_or(wanted);
        variables(all).any(|variable| CStr::from_ptr(variable).to_bytes().starts_with(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_among_others() {
        assert_eq!(library(b"/a/libx.so:/u/liburxe.so /b.so"), Some(&b"/u/liburxe.so"[..]));
        assert_eq!(library(b"/a/myliburxe.so"), None);
        assert_eq!(library(b""), None);
    }

    #[test]
    fn a_large_environment_gets_ours_back() {
        LIBRARY.store(c"/u/liburxe.so".as_ptr().cast_mut(), Ordering::Release);
        let mut given = vec![c"A=1".as_ptr(); 500];
        given.push(core::ptr::null());
        let found = Found { run: true, library: false, is_refused: false };
        // SAFETY: lists of C strings.
        let (in_usual, count) = unsafe {
            let in_usual = fill(&mut Usual::new(), given.as_ptr(), found);
            (in_usual, with_usual(given.as_ptr(), found, |all| variables(all).count()))
        };
        assert_eq!((in_usual, count), (None, 501));
    }

    #[test]
    fn lost_variables_come_back_and_none_twice() {
        LIBRARY.store(c"/u/liburxe.so".as_ptr().cast_mut(), Ordering::Release);
        VARIABLES[0].store(c"URXE_RUN=/f".as_ptr().cast_mut(), Ordering::Release);
        VARIABLES[1].store(c"URXE_MTU=1024".as_ptr().cast_mut(), Ordering::Release);
        let filled = |given: &[&CStr]| {
            let mut given: Vec<_> = given.iter().map(|variable| variable.as_ptr()).collect();
            given.push(core::ptr::null());
            let mut room = Most::new();
            // SAFETY: lists of C strings.
            unsafe {
                let found = look(given.as_ptr());
                fill(&mut room, given.as_ptr(), found)?;
                Some(
                    variables(room.list.as_ptr())
                        .map(|it| CStr::from_ptr(it).to_str().unwrap().to_owned())
                        .collect::<Vec<_>>(),
                )
            }
        };
        assert_eq!(filled(&[]).unwrap(), ["LD_PRELOAD=/u/liburxe.so", "URXE_RUN=/f", "URXE_MTU=1024"]);
        assert_eq!(
            filled(&[c"A=1", c"URXE_MTU=512", c"LD_PRELOAD=/b.so"]).unwrap(),
            ["A=1", "URXE_MTU=512", "LD_PRELOAD=/u/liburxe.so:/b.so", "URXE_RUN=/f"]
        );
        assert_eq!(filled(&[c"URXE_RUN=/g", c"LD_PRELOAD="]).unwrap(), ["URXE_RUN=/g", "LD_PRELOAD=/u/liburxe.so"]);
        assert_eq!(filled(&[c"A=1"; 1024]), None);
    }
}
