//! Writes a copy of the simulator without the symbols that a scenario names in `calls_missing`, so that it looks like
//! an old driver's library.

use std::error::Error;
use std::fs;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, scenario, copy] = arguments.as_slice() else {
        return Err("usage: without_calls LIBRARY SCENARIO.toml COPY".into());
    };
    let mut bytes = fs::read(library).map_err(|error| format!("{library}: {error}"))?;
    let text = fs::read_to_string(scenario).map_err(|error| format!("{scenario}: {error}"))?;
    let table: toml::Table = text.parse().map_err(|error| format!("{scenario}: {error}"))?;
    let missing = table.get("calls_missing").and_then(toml::Value::as_array).ok_or("no list `calls_missing`")?;
    nvml_sim::hide(&mut bytes, missing.iter().filter_map(toml::Value::as_str))?;
    fs::write(copy, bytes).map_err(|error| format!("{copy}: {error}"))?;
    Ok(())
}
