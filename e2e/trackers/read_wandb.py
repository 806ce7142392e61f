"""Reads a file of Weights & Biases' offline mode with wandb's own reader, and prints it as one JSON object.

    read_wandb.py FILE
"""

import json
import sys

from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal import datastore


def main(path: str) -> None:
    log = datastore.DataStore()
    log.open_for_scan(path)
    run, history, exit_code, axis, kinds = {}, [], None, {}, []
    while (data := log.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        kinds.append(kind)
        if kind == "run":
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            run = {
                "id": record.run.run_id,
                "project": record.run.project,
                "name": record.run.display_name,
                "config": config,
            }
        elif kind == "history":
            history.append({item.key: json.loads(item.value_json) for item in record.history.item})
        elif kind == "metric":
            axis[record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            exit_code = record.exit.exit_code
    print(json.dumps({"run": run, "history": history, "exit": exit_code, "axis": axis, "kinds": kinds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
