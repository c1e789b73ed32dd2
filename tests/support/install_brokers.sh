#!/usr/bin/env bash
# Installs the servers that the broker tests start: Redis, NATS and RabbitMQ as Debian packages, Apache Kafka as its jars
# from Maven Central, in a cache directory outside the repo. What is there already is left alone.
# Needs root or sudo for the packages. ANKUSA_TEST_CACHE names another cache directory.
set -euo pipefail

kafka=3.9.1
cache="${ANKUSA_TEST_CACHE:-$HOME/.cache/ankusa-tests}"
jars="$cache/kafka-$kafka"
packages=()

wants() { # wants COMMAND PACKAGE
    PATH="$PATH:/usr/sbin" command -v "$1" >/dev/null || packages+=("$2")
}
wants redis-server redis-server
wants nats-server nats-server
wants rabbitmq-server rabbitmq-server
wants java default-jre-headless
[ -e "$jars/.complete" ] || wants mvn maven

if [ "${#packages[@]}" -gt 0 ]; then
    echo "installing ${packages[*]}"
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get -qq update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null
fi

if [ ! -e "$jars/.complete" ]; then
    echo "fetching Apache Kafka $kafka"
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$kafka</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
    mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars"
    mkdir -p "$cache"
    rm -rf "$jars"
    touch "$work/jars/.complete"
    mv "$work/jars" "$jars"
fi
echo "brokers are installed"
