//! Options of a sanitizer's runtime that programs below `urxe run` get without a word in their environment.
//!
//! The runtimes ask functions of these names, which a program may define, before they read `ASAN_OPTIONS`. A runtime that is a
//! shared library finds those of a preloaded library where the program has none of its own. One that is linked into the program
//! finds none, and needs none.

use core::ffi::{CStr, c_char};

/// The library comes before the runtime of a program that is linked with `libasan.so`. By default the runtime takes that for a
/// mistake and ends the program (`ASan runtime does not come first in initial library list`): a library in front could stand
/// before the runtime's own functions. Each of ours calls the next of its name, so the runtime sees every call.
const ADDRESS: &CStr = c"verify_asan_link_order=0";

/// Options of AddressSanitizer (`<sanitizer/asan_interface.h>`). Called before any constructor has run.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    ADDRESS.as_ptr()
}
