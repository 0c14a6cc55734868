//! Makes namespaces for tests and holds them until its standard input ends.

use std::process::ExitCode;

use urxe_tests::sandbox;

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("machine") => sandbox::machine(),
        Some("host") => sandbox::host(),
        _ => {
            eprintln!("usage: urxe-sandbox machine | host");
            return ExitCode::FAILURE;
        }
    };
    match result.and_then(|()| sandbox::hold()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe-sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}
