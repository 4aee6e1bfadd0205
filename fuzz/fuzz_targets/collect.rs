//! Any outer frames at any times, through the whole collector, with a function behind it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwire_fuzz::collect;

fuzz_target!(|data: &[u8]| collect::collect(data));
