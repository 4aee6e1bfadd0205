//! Objects of any text: an error or valid objects, never a panic; what is accepted is accepted again as printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwire_datapath::object;

fuzz_target!(|text: &str| {
    if let Ok(objects) = object::parse("fuzz.yaml", text) {
        for located in &objects {
            let printed = located.manifest.to_string();
            if let Err(errors) = object::parse("printed.json", &printed) {
                panic!("accepted, but not as printed: {printed}: {errors}");
            }
        }
        let _ = object::ObjectSet::build(objects);
    }
});
