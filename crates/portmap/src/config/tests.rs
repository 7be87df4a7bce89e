use serde_json::json;

use super::*;

fn read_all(asked: &Value) -> Result<Vec<Mapping>, Error> {
    mappings(&json::read::<Vec<_>>(asked, MAPPINGS)?.value)
}

#[test]
fn mapping_is_read_as_every_runtime_writes_it() {
    let wanted = |host| Mapping {
        host_port: NonZeroU16::new(8080).unwrap(),
        container_port: NonZeroU16::new(80).unwrap(),
        protocol: Protocol::Udp,
        host,
    };
    for (host_ip, host) in [
        ("", HostAddress::Any),
        ("0.0.0.0", HostAddress::AnyOf(IpVersion::V4)),
        ("::", HostAddress::AnyOf(IpVersion::V6)),
        ("::ffff:192.0.2.1", HostAddress::One([192, 0, 2, 1].into())),
    ] {
        let mapping =
            json!({"HostPort": 8080, "ContainerPort": 80, "Protocol": "UDP", "HostIP": host_ip});
        assert_eq!(read_all(&json!([mapping])).unwrap(), [wanted(host)]);
    }
    let one = json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"}]);
    let one = read_all(&one).unwrap()[0];
    let host = HostAddress::One([192, 0, 2, 1].into());
    assert_eq!((one.protocol, one.host), (Protocol::Tcp, host));
}

#[test]
fn mapping_that_makes_no_sense_is_refused_with_its_key() {
    for (mapping, key) in [
        (json!({"hostPort": 0, "containerPort": 80}), "hostPort: 0"),
        (
            json!({"hostPort": 1, "containerPort": 65536}),
            "containerPort: 65536",
        ),
        (
            json!({"hostPort": 1, "containerPort": 1, "protocol": "icmp"}),
            "protocol: \"icmp\"",
        ),
        (
            json!({"hostPort": 1, "containerPort": 1, "hostIP": "localhost"}),
            "hostIP: \"localhost\"",
        ),
        (
            json!({"hostPort": 1, "containerPort": 1, "hostIP": "::1"}),
            "hostIP: ::1",
        ),
    ] {
        let error = read_all(&json!([mapping])).unwrap_err();
        let expected = format!("runtimeConfig.portMappings[0].{key}");
        assert!(
            error.code() == 7 && error.to_string().starts_with(&expected),
            "{error}"
        );
    }
}

#[test]
fn one_port_cannot_be_forwarded_to_two() {
    let pair = |one: &str, other: &str| {
        let mapping =
            |host: &str, port: u16| json!({"hostPort": 80, "containerPort": port, "hostIP": host});
        read_all(&json!([mapping(one, 1), mapping(other, 2)]))
    };
    for (one, other) in [("", ""), ("", "::"), ("192.0.2.1", "192.0.2.1")] {
        let error = pair(one, other).unwrap_err().to_string();
        assert!(
            error.starts_with("runtimeConfig.portMappings[1]: tcp port 80"),
            "{error}"
        );
    }
    let both = "cannot be forwarded to both 1 and 2";
    assert!(pair("", "").unwrap_err().to_string().ends_with(both));
    for (one, other) in [
        ("0.0.0.0", "::"),
        ("", "192.0.2.1"),
        ("192.0.2.1", "192.0.2.2"),
    ] {
        assert_eq!(pair(one, other).unwrap().len(), 2);
    }
}

/// Checks that a missing key gets the value that the JSON Schema gives as its default.
#[test]
fn defaults_are_those_of_the_schema() {
    let schema = include_str!("../../../../conf-examples/conflist.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let keys = schema["$defs"]["portmap"]["properties"]
        .as_object()
        .unwrap();
    let defaults = keys.iter().filter(|(_, it)| !it["default"].is_null());
    let of = |mut document: Value| {
        document["name"] = "pods".into();
        let document = cni::Document::decode(document.to_string().into()).unwrap();
        let versions = cni::SpecVersion::ALL;
        Config::parse(&Network::parse(document, cni::SearchPath::default(), versions).unwrap())
    };
    let mut written = json!({});
    for (key, it) in defaults {
        written[key] = it["default"].clone();
    }
    assert!(written.as_object().unwrap().len() > 2, "{written}");
    assert_eq!(of(written).unwrap(), of(json!({})).unwrap());
}
