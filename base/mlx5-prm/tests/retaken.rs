//! The known-answer vectors, generated again from the vendor's library on virtual devices
//! (`emulator/ci/vectors`), against the committed ones. QP numbers, addresses and keys differ from
//! run to run; everything else must be equal.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::collections::BTreeMap;

use common::{hex, list, load, number, sends_of, text};
use serde_json::Value;

/// Fields whose values differ from run to run; [`blanked`] compares the bytes that repeat them.
const CHOSEN: [&str; 4] = ["qpn", "remote_addr", "rkey", "lkey"];

/// The part that two sets of vectors must have in common, by the names of the requests.
fn essence(all: &Value) -> Result<BTreeMap<String, Value>, String> {
    let mut requests = BTreeMap::new();
    for (kind, key) in [("send", "name"), ("recv", "index")] {
        for v in list(&all[kind]) {
            let name = format!("{kind} {}", v[key].to_string().trim_matches('"'));
            let blank = blanked(kind, v).map_err(|e| format!("{name}: {e}"))?;
            if requests.insert(name.clone(), blank).is_some() {
                return Err(format!("{name} is there twice"));
            }
        }
    }
    Ok(requests)
}

/// A request in which the numbers of one run are blank, in the fields and in the bytes.
///
/// # Errors
/// The bytes of a number differ from its field.
fn blanked(kind: &str, v: &Value) -> Result<Value, String> {
    let mut bytes = hex(&v["wqe"]);
    let mut doorbell = v["doorbell_qword"].as_str().map(hexed).unwrap_or_default();
    let blank = |what: &str, bytes: &mut [u8], at: usize, is: &[u8]| {
        let place = bytes.get_mut(at..at + is.len());
        let place = place.ok_or_else(|| format!("no room for the {what} at {at}"))?;
        if place != is {
            return Err(format!("the {what} at {at} is {place:02x?}, not {is:02x?}"));
        }
        place.fill(0);
        Ok(())
    };
    let word = |v: &Value| (number(v) as u32).to_be_bytes();
    let mut at = 0;
    let mut inline = false;
    if kind == "send" {
        let qpn = &word(&v["qpn"])[1..];
        blank("QPN", &mut bytes, 4, qpn)?;
        blank("QPN of the doorbell", &mut doorbell, 4, qpn)?;
        inline = number(&v["send_flags"]) & 8 != 0;
        at = 16;
        let (addr, rkey) = (number(&v["remote_addr"]), word(&v["rkey"]));
        match number(&v["opcode"]) {
            _ if text(&v["qp_type"]) == "UD" => {
                // The mark of a longer segment is in the word as well.
                blank("peer's QPN", &mut bytes, at + 9, &rkey[1..])?;
                at += 48;
            }
            2 | 3 => {}
            opcode => {
                blank("remote address", &mut bytes, at, &addr.to_be_bytes())?;
                blank("rkey", &mut bytes, at + 8, &rkey)?;
                at += if matches!(opcode, 5 | 6) { 32 } else { 16 };
            }
        }
    }
    for sge in list(&v["sge"]).iter().filter(|_| !inline) {
        blank("lkey", &mut bytes, at + 4, &word(&sge["lkey"]))?;
        let addr = number(&sge["addr"]).to_be_bytes();
        blank("address", &mut bytes, at + 8, &addr)?;
        at += 16;
    }

    let mut rest = v.clone();
    let fields = rest.as_object_mut().ok_or("no object")?;
    fields.retain(|field, _| !CHOSEN.contains(&field.as_str()));
    for number_of in ["compare_add", "swap"] {
        // A number in a string may be decimal or hexadecimal.
        if let Some(field) = fields.get_mut(number_of) {
            *field = number(field).into();
        }
    }
    fields.insert("wqe".into(), format!("{bytes:02x?}").into());
    if kind == "send" {
        fields.insert("doorbell_qword".into(), format!("{doorbell:02x?}").into());
    }
    for sge in fields["sge"].as_array_mut().ok_or("no list")? {
        let fields = sge.as_object_mut().ok_or("no object")?;
        fields.retain(|field, _| !CHOSEN.contains(&field.as_str()) && field != "addr");
    }
    Ok(rest)
}

fn hexed(s: &str) -> Vec<u8> {
    hex(&s.into())
}

/// Compares both sets and returns the number of requests.
fn compare(new: &Value, old: &Value) -> Result<usize, String> {
    let (new, old) = (essence(new)?, essence(old)?);
    for (name, expected) in &old {
        let found = new.get(name).ok_or_else(|| format!("{name} is missing"))?;
        if found != expected {
            return Err(format!("{name}:\nnew {found}\nold {expected}"));
        }
    }
    match new.keys().find(|name| !old.contains_key(*name)) {
        Some(name) => Err(format!("{name} is new")),
        None => Ok(old.len()),
    }
}

#[test]
#[ignore = "needs GDS_VECTORS, the file of vectors that emulator/ci/vectors writes"]
fn regenerated_vectors_equal_the_committed_ones() {
    let path = std::env::var("GDS_VECTORS").expect("GDS_VECTORS names a file");
    let file = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let new: Value = serde_json::from_str(&file).unwrap_or_else(|e| panic!("{path}: {e}"));
    match compare(&new, &load()) {
        Ok(count) => println!("{count} requests compared, all equal"),
        Err(why) => panic!("{why}"),
    }
    // The encoder writes the same bytes for them, with the numbers of that run.
    for v in sends_of(&new) {
        let mut bytes = Vec::new();
        let mut sink = |segment: &[u8; 16]| bytes.extend_from_slice(segment);
        v.with(|wqe| wqe.encode(v.index as u16, v.qpn, &mut sink))
            .unwrap();
        assert_eq!(bytes, v.wqe, "{}", v.name);
    }
}

#[test]
fn vectors_with_other_numbers_of_a_run_are_equal() {
    let mut old = load();
    let write = list(&old["send"])
        .iter()
        .find(|v| v["name"] == "write_1sge");
    old["send"] = vec![write.unwrap().clone()].into();
    old["recv"] = vec![old["recv"][0].clone()].into();
    let mut new = old.to_string();
    // Queue pair 0x1001, the keys 0x101, and addresses, in fields and in bytes.
    for (from, to) in [
        ("\"qpn\":4097", "\"qpn\":987654"),
        ("00100103", "0f120603"),
        ("\"lkey\":257", "\"lkey\":11259375"),
        ("\"rkey\":257", "\"rkey\":11259375"),
        ("00000101", "00abcdef"),
        ("7f2d275", "7e11115"),
    ] {
        assert!(new.contains(from), "{from}");
        new = new.replace(from, to);
    }
    let new = serde_json::from_str(&new).unwrap();
    assert_eq!(compare(&new, &old), Ok(2));
}

#[test]
fn every_changed_byte_is_noticed() {
    let old = load();
    let all = list(&old["send"]).len() + list(&old["recv"]).len();
    assert_eq!(compare(&old, &old), Ok(all));
    for (kind, fields) in [("send", &["wqe", "doorbell_qword"][..]), ("recv", &["wqe"])] {
        for (i, v) in list(&old[kind]).iter().enumerate() {
            for &field in fields {
                for at in 0..hex(&v[field]).len() {
                    let mut new = serde_json::json!({"send": [], "recv": []});
                    let mut one = v.clone();
                    let mut bytes = hex(&v[field]);
                    bytes[at] ^= 1;
                    let bytes: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
                    one[field] = bytes.into();
                    new[kind] = vec![one].into();
                    let mut same = serde_json::json!({"send": [], "recv": []});
                    same[kind] = vec![v.clone()].into();
                    assert!(
                        compare(&new, &same).is_err(),
                        "{kind} {i}: byte {at} of {field}"
                    );
                }
            }
        }
    }
}

#[test]
fn missing_new_and_duplicate_vectors_are_noticed() {
    let old = load();
    let mut fewer = old.clone();
    fewer["send"].as_array_mut().unwrap().pop();
    assert!(compare(&fewer, &old).unwrap_err().contains("is missing"));
    assert!(compare(&old, &fewer).unwrap_err().contains("is new"));
    let mut twice = old.clone();
    let again = twice["recv"][0].clone();
    twice["recv"].as_array_mut().unwrap().push(again);
    assert!(compare(&twice, &old).unwrap_err().contains("twice"));
}
