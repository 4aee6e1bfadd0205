//! An agent that answers from a script, and the command that asks it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;

use serde_json::Value;

/// The command, speaking to an agent behind a socket.
pub fn command(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podwire"));
    for name in ["PODWIRE_SOCKET", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.args(["--socket".as_ref(), socket.as_os_str()]);
    command
}

/// Runs it.
pub fn podwire(socket: &Path, words: &[&str]) -> Output {
    command(socket).args(words).output().expect("podwire starts")
}

/// What it printed.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it said besides.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file of `traceflow/`.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traceflow").join(name)
}

/// What is in it.
pub fn text(name: &str) -> String {
    std::fs::read_to_string(file(name)).expect("a file of the test")
}

/// A result as the agent sends it: one line.
pub fn line(name: &str) -> String {
    let object: Value = serde_json::from_str(&text(name)).expect("JSON");
    format!("{object}\n")
}

/// What an agent was asked: the request line and the body.
pub fn request(stream: &UnixStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut header, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first).expect("a request line");
    while reader.read_line(&mut header).expect("a header") > 2 {
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        header.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    (first, String::from_utf8_lossy(&body).into_owned())
}

/// Answers requests one after the other.
pub fn agent(socket: &Path, answers: Vec<(&'static str, String)>) -> JoinHandle<Vec<(String, String)>> {
    let listener = UnixListener::bind(socket).expect("the socket binds");
    std::thread::spawn(move || {
        answers
            .into_iter()
            .map(|(status, body)| {
                let (mut stream, _) = listener.accept().expect("a client comes");
                let asked = request(&stream);
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).expect("the client reads");
                stream.write_all(body.as_bytes()).expect("the client reads");
                asked
            })
            .collect()
    })
}
