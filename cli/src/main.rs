//! urxe command
fn main() {}
