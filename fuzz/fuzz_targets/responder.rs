#![no_main]
//! A responder under arbitrary streams of requests.

use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use urxe_fuzz::{Siege, Target};

fuzz_target!(|bytes: &[u8]| {
    let mut u = Unstructured::new(bytes);
    let _ = Siege::new(Target::Responder, &mut u).and_then(|mut siege| siege.run(&mut u));
});
