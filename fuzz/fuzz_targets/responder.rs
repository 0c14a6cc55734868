#![no_main]
//! A responder under arbitrary streams of requests.

use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use urxe_fuzz::{Siege, Target};

fuzz_target!(|bytes: &[u8]| {
    let _ = Siege::new(Target::Responder).run(&mut Unstructured::new(bytes));
});
