//! Random frames: mostly well-formed ones of every kind, some damaged.

/// A small generator (xorshift) whose first state is printed with a failure.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }

    /// True in so many of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

pub const V4: [[u8; 4]; 6] =
    [[10, 10, 1, 5], [10, 10, 1, 6], [10, 20, 0, 9], [10, 20, 7, 9], [192, 0, 2, 9], [255, 255, 255, 255]];
pub const V6: [[u8; 16]; 4] = [
    [0xfd, 0, 0, 0x10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5],
    [0xfd, 0, 0, 0x10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6],
    [0xfd, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
];
pub const PORTS: [u16; 6] = [0, 53, 80, 8080, 32768, 65535];
pub const PROTOCOLS: [u8; 8] = [6, 17, 1, 58, 132, 47, 136, 33];
pub const ETHER_TYPES: [u16; 5] = [0x0806, 0x88cc, 0x0800, 0x86dd, 0x1234];

/// A frame of at least 14 bytes, which the kernel asks for.
pub fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 6];
    let tags = if random.chance(25) { 1 + random.below(3) } else { 0 };
    for _ in 0..tags {
        frame.extend(random.pick(&[0x8100u16, 0x88a8]).to_be_bytes());
        frame.extend((random.next() as u16).to_be_bytes());
    }
    match random.below(10) {
        0 => {
            frame.extend(random.pick(&ETHER_TYPES).to_be_bytes());
            filler(&mut frame, random, 60);
        }
        1..=5 => {
            frame.extend([0x08, 0x00]);
            v4(&mut frame, random);
        }
        _ => {
            frame.extend([0x86, 0xdd]);
            v6(&mut frame, random);
        }
    }
    if random.chance(12) {
        let len = 14 + random.below(frame.len().saturating_sub(13).max(1));
        frame.truncate(len);
    }
    if random.chance(15) {
        for _ in 0..1 + random.below(4) {
            let at = 12 + random.below(frame.len() - 12);
            frame[at] = random.next() as u8;
        }
    }
    // The kernel refuses to run programs on IP frames without a whole fixed header; the wire tests have those.
    let least = match frame[12..14] {
        [0x08, 0x00] => 14 + 20,
        [0x86, 0xdd] => 14 + 40,
        _ => 15,
    };
    frame.resize(frame.len().max(least), 0);
    frame
}

fn filler(frame: &mut Vec<u8>, random: &mut Random, most: usize) {
    for _ in 0..random.below(most) {
        frame.push(random.next() as u8);
    }
}

fn v4(frame: &mut Vec<u8>, random: &mut Random) {
    let options = if random.chance(15) { random.below(11) } else { 0 };
    let protocol = random.pick(&PROTOCOLS);
    let fragment = match random.below(8) {
        0 => 0x2000,
        1 => random.below(100) as u16,
        _ => 0x4000,
    };
    frame.extend([0x45 + options as u8, 0, 0, 100]);
    frame.extend((random.next() as u16).to_be_bytes());
    frame.extend(u16::to_be_bytes(fragment));
    frame.extend([64, protocol, 0, 0]);
    frame.extend(random.pick(&V4));
    frame.extend(random.pick(&V4));
    frame.extend(std::iter::repeat_n(1, options * 4));
    transport(frame, random, protocol);
}

fn v6(frame: &mut Vec<u8>, random: &mut Random) {
    let chain: Vec<u8> = (0..if random.chance(35) { random.below(11) } else { 0 })
        .map(|_| random.pick(&[0, 43, 60, 44, 51, 135, 139, 140]))
        .collect();
    let protocol = random.pick(&PROTOCOLS);
    let mut next = chain.iter().copied().chain([protocol]);
    frame.extend([0x60, 0, 0, 0, 0, 100, next.next().unwrap_or(protocol), 64]);
    frame.extend(random.pick(&V6));
    frame.extend(random.pick(&V6));
    for (kind, following) in chain.iter().zip(next) {
        let long = random.below(3) as u8;
        match kind {
            44 => {
                let offset = if random.chance(50) { 0 } else { (random.below(50) as u16) << 3 };
                frame.extend([following, 0]);
                frame.extend(offset.to_be_bytes());
                frame.extend([0, 0, 0, 1]);
            }
            51 => {
                frame.extend([following, long]);
                frame.extend(std::iter::repeat_n(0, (usize::from(long) + 2) * 4 - 2));
            }
            _ => {
                frame.extend([following, long]);
                frame.extend(std::iter::repeat_n(0, (usize::from(long) + 1) * 8 - 2));
            }
        }
    }
    transport(frame, random, protocol);
}

fn transport(frame: &mut Vec<u8>, random: &mut Random, protocol: u8) {
    match protocol {
        1 | 58 => frame.extend([random.pick(&[0, 8, 128, 129, 3]), random.below(3) as u8, 0, 0]),
        6 => {
            frame.extend(random.pick(&PORTS).to_be_bytes());
            frame.extend(random.pick(&PORTS).to_be_bytes());
            frame.extend([0; 8]);
            frame.extend([0x50, random.next() as u8, 0xff, 0xff, 0, 0, 0, 0]);
        }
        _ => {
            frame.extend(random.pick(&PORTS).to_be_bytes());
            frame.extend(random.pick(&PORTS).to_be_bytes());
            frame.extend([0, 8, 0, 0]);
        }
    }
    let most = if random.chance(30) { 1400 } else { 80 };
    filler(frame, random, most);
}
