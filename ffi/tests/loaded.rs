//! Against the libibverbs of this machine, which nothing here links with.

use urxe_ffi::private::{Libibverbs, LookupError};

/// One test, because its two halves have to come in this order.
#[test]
fn a_libibverbs_is_found_once_it_is_loaded_and_even_if_locally() {
    assert_eq!(Libibverbs::loaded(c"libibverbs.so.1").err(), Some(LookupError::NotLoaded));

    // SAFETY: a C string; the library's constructors only set up its own state.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "libibverbs.so.1 is not installed");

    let library = Libibverbs::loaded(c"libibverbs.so.1").unwrap();
    // The symbol version says the number too.
    let symbol = library.pabi().register_symbol();
    // SAFETY: a live handle and C strings.
    let address = unsafe {
        let version = std::ffi::CString::new(format!("IBVERBS_PRIVATE_{}", library.pabi().number())).unwrap();
        libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr())
    };
    assert_eq!(address.cast_const(), library.address());
}
