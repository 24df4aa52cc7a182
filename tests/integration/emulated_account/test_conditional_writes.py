"""What run state rests on: conditional writes that hold under many writers at once."""

import threading
import uuid

import pytest
from botocore.exceptions import ClientError

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)

WRITERS = 8
ROUNDS = 10


@pytest.fixture
def table(server):
    client = server.client("dynamodb")
    name = f"t-{uuid.uuid4().hex}"
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
    )
    yield name
    client.delete_table(TableName=name)


def together(work):
    """Run `work(number)` in many threads at once, and give what each returned."""
    results = [None] * WRITERS
    gate = threading.Barrier(WRITERS)

    def one(number):
        gate.wait()
        results[number] = work(number)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def refused(call, *codes, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] not in codes:
            raise
        return True
    return False


def test_one_of_many_conditional_puts_wins(server, table):
    clients = [server.client("dynamodb") for _ in range(WRITERS)]
    for round_number in range(ROUNDS):
        key = {"pk": {"S": str(round_number)}}

        def put(number, key=key):
            return refused(
                clients[number].put_item,
                "ConditionalCheckFailedException",
                TableName=table,
                Item={**key, "by": {"N": str(number)}},
                ConditionExpression="attribute_not_exists(pk)",
            )

        assert together(put).count(False) == 1


def test_a_refused_transaction_loses_nobody_elses_write(server, table):
    clients = [server.client("dynamodb") for _ in range(WRITERS)]
    clients[0].put_item(TableName=table, Item={"pk": {"S": "sum"}, "n": {"N": "0"}})

    def work(number):
        for _ in range(ROUNDS):
            if number % 2:
                _refused_transaction(clients[number], table)
            else:
                clients[number].update_item(
                    TableName=table,
                    Key={"pk": {"S": "sum"}},
                    UpdateExpression="ADD n :one",
                    ExpressionAttributeValues={":one": {"N": "1"}},
                )

    together(work)
    found = clients[0].get_item(TableName=table, Key={"pk": {"S": "sum"}})
    assert found["Item"]["n"]["N"] == str(ROUNDS * WRITERS // 2)


def _refused_transaction(client, table):
    check = {
        "TableName": table,
        "Key": {"pk": {"S": "sum"}},
        "ConditionExpression": "attribute_not_exists(pk)",
    }
    assert refused(
        client.transact_write_items,
        "TransactionCanceledException",
        TransactItems=[{"ConditionCheck": check}],
    )


def test_one_of_many_first_puts_of_an_object_wins(server):
    clients = [server.client("s3") for _ in range(WRITERS)]
    bucket = f"b-{uuid.uuid4().hex}"
    clients[0].create_bucket(Bucket=bucket)
    for round_number in range(ROUNDS):

        def put(number, key=f"manifest-{round_number}"):
            return refused(
                clients[number].put_object,
                "PreconditionFailed",
                "ConditionalRequestConflict",
                Bucket=bucket,
                Key=key,
                Body=b"x",
                IfNoneMatch="*",
            )

        assert together(put).count(False) == 1
