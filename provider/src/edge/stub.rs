//! `liburxe-rdmavNN.so` of an installation: the stub that each copy of libibverbs loads, so that we are told (`urxe install`
//! makes it).
//!
//! glibc runs the constructors of a library that is unloaded and loaded again, so the stub is unloaded once it has told us:
//! what comes next is loaded by another copy. libibverbs keeps no handle of the providers that it loads.

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernel::plt::{exporters, files};
use urxe_runtime::fork_safe_mutex::without_fork;

/// How the stub's file is called, before the number of the private ABI.
const NAME: &CStr = c"liburxe-rdmav";

/// Most handles of one stub: IBV_DRIVERS and the driver files may both name it, for each of several copies.
const MAX_HANDLES: usize = 64;

/// The stub is loaded.
static LOADED: AtomicBool = AtomicBool::new(false);

/// Whether another instance of this library, from another file, is loaded before this one; it is told in our place.
pub(super) fn told_another_instance(constructor: extern "C" fn()) -> bool {
    let own = constructor as *const () as usize;
    let first = without_fork(|| exporters(&[c"urxe_register_provider"])).into_iter().next();
    let Some(other) = first.filter(|first| first.function != own) else { return false };
    // SAFETY: the function of this name has this type; the library is never unloaded.
    unsafe { std::mem::transmute::<usize, extern "C" fn()>(other.function)() };
    true
}

/// The stub's constructor is about to end.
pub(super) fn has_told() {
    LOADED.store(true, Ordering::Release);
}

/// Unloads the stub, if it is loaded. Not from its constructor: the loader is not done with it then.
pub(super) fn unload() {
    if !LOADED.swap(false, Ordering::AcqRel) {
        return;
    }
    let own = own_path();
    for stub in without_fork(|| files(NAME)) {
        // An older installation has the library itself under this name.
        if own.as_deref() != Some(&*stub) {
            close(&stub);
        }
    }
}

/// Gives back every handle of a stub.
fn close(path: &CStr) {
    for _ in 0..MAX_HANDLES {
        // SAFETY: the loader's own name of it, with a slash, so that it reads no cache; nothing is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return;
        }
        // SAFETY: this handle, and one of a libibverbs, which forgets it. There is no code in a stub that could run.
        unsafe {
            libc::dlclose(handle);
            libc::dlclose(handle);
        }
    }
}

/// Keeps this library loaded: the loader would unload it with the stub, which needs it, or when a program that has loaded it closes it.
pub(super) fn stay_loaded() {
    if let Some(path) = own_path() {
        // SAFETY: our own name; nothing is loaded.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

/// The loader's name of this library.
fn own_path() -> Option<CString> {
    // SAFETY: all-zero is a value of this plain C struct, which dladdr(3) fills.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr(own_path as *const () as *const c_void, &raw mut info) != 0;
        (found && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname).to_owned())
    }
}
