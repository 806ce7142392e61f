//! Prints the table of `make check-harnesses` and keeps its figures: grpo-harness-report FOLDER FILE.

use grpo_bench_report::harnesses;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(folder), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("grpo-harness-report FOLDER FILE");
        return ExitCode::from(2);
    };
    let read = match harnesses::read(&folder) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("failed to read {}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    };
    print!("{}", harnesses::table(&read));
    let bench = harnesses::bench(&read);
    for row in bench.rows.iter().filter(|row| !row.meets_its_bar()) {
        println!("{}: {:?} {}, not {:?}", row.figure, row.value, row.unit, row.bar);
    }
    match bench.write(&file) {
        Ok(()) if bench.rows.iter().all(grpo_bench_report::Row::meets_its_bar) => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
