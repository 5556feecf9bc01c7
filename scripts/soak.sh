#!/usr/bin/env bash
# Repeats the tests with random input for SOAK_SECONDS, then runs the tests of faults with more faults, longer outages and more
# connections than `make test-deep`. Stops at the first test binary that fails.
set -euo pipefail

cd "$(dirname "$0")/.."

end=$((SECONDS + ${SOAK_SECONDS:-600}))
while ((SECONDS < end)); do
    PROPTEST_CASES=${SOAK_CASES:-4096} HISTORIES=${SOAK_HISTORIES:-600} \
        cargo test --workspace --lib --test edge --test histories -- fuzz match_the_model
done

export OFFLINE_SECONDS=600 FROZEN_CHANGES=20000 FROZEN_AGENTS=1000 KILLS=200 FAILOVERS=5 OUTAGE_SECONDS=30 SILENT_CONNECTIONS=5000 FLEET_SECONDS=60 BACKLOG=100000
cargo test --workspace --test faults -- --nocapture
cargo test --workspace --test replicas -- --nocapture fleet:: redis::
cargo test --workspace --test server -- --nocapture connections:: reload:: stopping::
cargo test --workspace --test webhooks -- --nocapture crashes:: backlog:: delivery:: isolation:: name_resolution::
cargo test --workspace --test edge -- --nocapture frozen_sidecar:: sidecar:: view_copy::
