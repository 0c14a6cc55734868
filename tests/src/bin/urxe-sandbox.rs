//! Makes namespaces for tests and holds them until its standard input ends; or is the network between two of them.

use std::process::ExitCode;

use urxe_tests::forward::{Reordering, forward};
use urxe_tests::sandbox;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result: anyhow::Result<()> = match args.as_slice() {
        ["machine"] => sandbox::machine().and_then(|()| sandbox::hold()).map_err(Into::into),
        ["host"] => sandbox::host().and_then(|()| sandbox::hold()).map_err(Into::into),
        ["forward", left, right, reordering @ ..] => {
            Reordering::from_args(reordering).and_then(|reordering| forward(left, right, &reordering))
        }
        _ => {
            eprintln!("usage: urxe-sandbox machine | host | forward INTERFACE INTERFACE REORDERING");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe-sandbox: {error:#}");
            ExitCode::FAILURE
        }
    }
}
