//! Every reader of the wire formats, and whole frames with their checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwire_fuzz::walk;

fuzz_target!(|data: &[u8]| {
    walk::every_reader(data, 0);
    walk::frame(data);
});
