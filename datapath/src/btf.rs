//! The kernel's own description of its types, as far as the datapath needs it: where a field of a structure is, and what
//! the numbers of an enumeration are called. In: `/sys/kernel/btf/vmlinux`. Out: offsets and names.
//!
//! ```text
//! header: magic(16) version(8) flags(8) length(32) | types: offset, length | strings: offset, length
//! type:   name(32) info(32) size or type(32), then by kind what it has
//! ```
//! In the byte order of the machine (Documentation/bpf/btf.rst).

use std::collections::BTreeMap;

/// Where the kernel has it.
const PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const ENUM64: u32 = 19;

/// A type as it stands.
#[derive(Clone, Copy, Debug)]
struct Type {
    name: u32,
    info: u32,
    /// Of what it has: offset in the types' section.
    rest: usize,
}

impl Type {
    const fn kind(&self) -> u32 {
        self.info >> 24 & 0x1f
    }

    const fn len(&self) -> usize {
        (self.info & 0xffff) as usize
    }

    /// Offsets of members have the widths of bit fields beside them.
    const fn has_bit_fields(&self) -> bool {
        self.info >> 31 != 0
    }
}

/// All types.
pub(crate) struct Btf {
    types: Vec<u8>,
    strings: Vec<u8>,
    /// By number less one.
    index: Vec<Type>,
}

impl Btf {
    /// Reads the running kernel's; `None` where it has none, or one of another form.
    pub(crate) fn of_kernel() -> Option<Self> {
        Self::read(&std::fs::read(PATH).ok()?)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
        if half(0)? != MAGIC {
            return None;
        }
        let start = word(4)?;
        let section = |at: usize| {
            let (from, len) = (start.checked_add(word(at)?)?, word(at + 4)?);
            bytes.get(from..from.checked_add(len)?)
        };
        let mut btf = Self { types: section(8)?.to_vec(), strings: section(16)?.to_vec(), index: Vec::new() };
        let mut at = 0;
        while at < btf.types.len() {
            let found = Type { name: btf.word(at)?, info: btf.word(at + 4)?, rest: at + 12 };
            // What a type has besides, by its kind: a fixed length, and one for each part.
            at = found.rest
                + match found.kind() {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | ENUM64 | 15 => 12 * found.len(),
                    ENUM | 13 => 8 * found.len(),
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return None,
                };
            btf.index.push(found);
        }
        Some(btf)
    }

    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.types.get(at..at + 4)?.try_into().ok()?))
    }

    fn text(&self, at: u32) -> &str {
        let bytes = self.strings.get(at as usize..).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&bytes[..end]).unwrap_or_default()
    }

    fn find(&self, kinds: &[u32], name: &str) -> Option<Type> {
        self.index
            .iter()
            .find(|found| kinds.contains(&found.kind()) && self.text(found.name) == name)
            .copied()
    }

    /// Offset of a structure's field in bytes; fields of nameless parts are the structure's own.
    pub(crate) fn offset(&self, structure: &str, field: &str) -> Option<u32> {
        self.offset_in(self.find(&[STRUCT], structure)?, field, 0)
    }

    fn offset_in(&self, structure: Type, field: &str, depth: u32) -> Option<u32> {
        const DEEPEST: u32 = 8;
        for number in 0..structure.len() {
            let at = structure.rest + 12 * number;
            let (name, kind, bits) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
            let bits = if structure.has_bit_fields() { bits & 0x00ff_ffff } else { bits };
            if self.text(name) == field {
                return Some(bits / 8);
            }
            let inner = self.index.get((kind as usize).checked_sub(1)?);
            if self.text(name).is_empty()
                && depth < DEEPEST
                && let Some(inner) = inner.filter(|inner| matches!(inner.kind(), STRUCT | UNION))
                && let Some(offset) = self.offset_in(*inner, field, depth + 1)
            {
                return Some(bits / 8 + offset);
            }
        }
        None
    }

    /// The names of an enumeration's numbers.
    pub(crate) fn names(&self, enumeration: &str) -> Option<BTreeMap<u32, String>> {
        let found = self.find(&[ENUM, ENUM64], enumeration)?;
        let width = if found.kind() == ENUM { 8 } else { 12 };
        let mut names = BTreeMap::new();
        for number in 0..found.len() {
            let at = found.rest + width * number;
            names.insert(self.word(at + 4)?, self.text(self.word(at)?).to_owned());
        }
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test fails by panicking")]

    use super::*;

    /// `struct a { int; union { struct { int b; }; }; }` and `enum c { X = 2 }`, by hand.
    fn sample() -> Vec<u8> {
        let strings = b"\0a\0b\0c\0X\0int\0";
        let (a, b, c, x, int) = (1u32, 3, 5, 7, 9);
        let words: Vec<u32> = [
            vec![int, 1 << 24, 4, 32],
            vec![0, STRUCT << 24 | 1, 4, b, 1, 32],
            vec![0, UNION << 24 | 1, 8, 0, 2, 0],
            vec![a, STRUCT << 24 | 2, 12, int, 1, 0, 0, 3, 32],
            vec![c, ENUM << 24 | 1, 4, x, 2],
        ]
        .concat();
        let types: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let header = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        bytes.extend(header.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn fields_are_found_in_nameless_parts() {
        let btf = Btf::read(&sample()).expect("readable");
        assert_eq!(btf.offset("a", "b"), Some(8));
        assert_eq!(btf.offset("a", "d"), None);
        assert_eq!(btf.names("c").expect("there").get(&2).map(String::as_str), Some("X"));
    }

    #[test]
    fn what_is_cut_is_not_read_beyond_its_end() {
        let whole = sample();
        for len in 0..whole.len() {
            let btf = Btf::read(&whole[..len]);
            let _ = btf.map(|btf| (btf.offset("a", "b"), btf.names("c")));
        }
    }

    #[test]
    fn the_running_kernel_is_understood() {
        // A kernel without BTF has nothing to be understood.
        let Some(btf) = Btf::of_kernel() else { return };
        assert!(btf.offset("sk_buff", "head").is_some() && btf.offset("sk_buff", "network_header").is_some());
    }
}
