#![no_main]
//! A requester and its completer under arbitrary responses.

use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use urxe_fuzz::{Siege, Target};

fuzz_target!(|bytes: &[u8]| {
    let mut u = Unstructured::new(bytes);
    let _ = Siege::new(Target::Completer, &mut u).and_then(|mut siege| siege.run(&mut u));
});
