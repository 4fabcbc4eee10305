"""Answers of the kind that models give every day, with nothing in them that a guard of the example should change."""

from __future__ import annotations

ANSWERS: tuple[str, ...] = (
    """Run the development server and open it:

```bash
flask --app app run --port 5000
 * Running on http://127.0.0.1:5000/ (Press CTRL+C to quit)
 * Running on http://192.168.1.23:5000/
```
""",
    """Bind to all interfaces with `host="0.0.0.0"`, and allow the subnet `10.0.0.0/8` in your firewall:

```
iptables -A INPUT -s 192.168.0.0/16 -p tcp --dport 8443 -j ACCEPT
ip addr add 172.16.254.1/24 dev eth0
nameserver 8.8.8.8
nameserver 1.1.1.1
```
IPv6 works too: `http://[::1]:8080/` and `2001:db8::8a2e:370:7334`.
""",
    """```python
users = [
    {"name": "Alice", "email": "alice@example.com", "id": "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"},
    {"name": "Bob", "email": "bob@example.org", "id": "550e8400-e29b-41d4-a716-446655440000"},
]
assert validate_email("first.last+tag@sub.example.com")
```
Write to support@example.com or admin@localhost.
""",
    """Your order 4829-2231-0091 of 2024-03-15 (invoice INV-2024-000123) has shipped with tracking number
1Z999AA10123456784. Order number: 100-4567890-1234567. Ticket #20231105, SKU 0012-3456-7890, ISBN 978-3-16-148410-0.
""",
    """| date | from | to |
|---|---|---|
| 2024-01-02 | 09:30:15.123456 | 2024-01-02T17:45:00+02:00 |
| 31.12.1999 | 12/31/1999 | 20240131T235959Z |
The epoch is 1700000000, in milliseconds 1700000000123.
""",
    """Upgrade from 1.2.3.4 to 10.0.19041.1234: `pip install "torch==2.13.0+cpu" numpy==1.26.4`. Chrome/120.0.6099.109
and Python 3.11.7 are fine; `CUDA 12.4.127` needs driver 550.54.15. See section 4.2.1.3.
""",
    """```yaml
services:
  db:
    image: postgres:16.2-alpine
    environment:
      POSTGRES_USER: app
      POSTGRES_PASSWORD: ${POSTGRES_PASSWORD:?set it}
    ports: ["5432:5432"]
  web:
    build: .
    environment: {DATABASE_URL: "postgresql://postgres:postgres@db:5432/app", PORT: "8000"}
    healthcheck: {test: ["CMD", "curl", "-f", "http://localhost:8000/healthz"], interval: 30s}
```
""",
    """```python
import os
from openai import OpenAI

client = OpenAI(api_key=os.environ["OPENAI_API_KEY"], base_url="http://localhost:8000/v1")
token = request.headers.get("Authorization", "").removeprefix("Bearer ")
password = getpass.getpass("Password: ")
secret_key = settings.SECRET_KEY
```
Set it with `export OPENAI_API_KEY=sk-...` or `YOUR_API_KEY`. Amazon's pages have AKIAIOSFODNN7EXAMPLE and
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY, and mysql://root:password@localhost/app.
""",
    """```bash
kill -9 $(lsof -t -i:3000)       # kill the process that blocks the port
git rebase --abort; git reset --hard 4f5e6d7c8b9a0f1e2d3c4b5a69788796a5b4c3d2
docker ps -a --filter "status=exited" -q | xargs docker rm
sha256sum: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
```
A child process becomes a zombie when its parent dies without waiting; the OOM killer shoots the fattest one.
""",
    """```sql
INSERT INTO orders (id, customer_id, total, created_at) VALUES
  (1000000001, 42, 199.99, '2024-02-29 23:59:59'),
  (1000000002, 43, 1299.00, '2024-03-01 00:00:00');
SELECT * FROM events WHERE ts BETWEEN 1704067200 AND 1706745599 LIMIT 1000;
```
""",
    """The first primes are 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71.
Pi is 3.14159265358979323846264338327950288419716939937510; 2**64 is 18446744073709551616,
and 1234567890123456789 modulo 97 is 27. Fibonacci: 1 1 2 3 5 8 13 21 34 55 89 144 233 377 610 987 1597 2584 4181.
""",
    """```json
{"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "duration_ms": 1532.25,
 "etag": "\\"33a64df551425fcc55e4d42a148795d9f25f89d4\\"", "size": 4294967296, "build": "20240115.3-1234567",
 "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy", "cursor": "MTIzNDU2Nzg5MA==", "zip": "94103-1234"}
```
""",
    """Use a regular expression for North American numbers, `^\\(?\\d{3}\\)?[-. ]?\\d{3}[-. ]?\\d{4}$`, and test it \
with `re.match`. For IPv4: `^(?:(?:25[0-5]|2[0-4]\\d|1?\\d?\\d)(?:\\.(?!$)|$)){4}$`.
""",
    """Coordinates: 48.858370, 2.294481. Colours: #1a2b3c, rgb(255, 87, 51). MAC: 00:1A:2B:3C:4D:5E. Time: 1:23:45.
Ports 80, 443, 8080-8090, 27017. Chmod 0755. RFC 2616, ISO 8601, IEEE 754, CVE-2021-44228, KB5034441.
""",
    """```
$ ssh -i ~/.ssh/id_ed25519 deploy@192.168.56.10 -p 2222
$ git clone git@github.com:psf/requests.git && curl -sS https://api.example.com/v1/users/123456789 | jq .
$ scp build.tar.gz root@10.1.2.3:/srv/www/releases/20240115123000/
$ kubectl -n prod port-forward svc/api 8080:80   # 127.0.0.1:8080 -> 80
```
""",
    """```javascript
const hash = "5f4dcc3b5aa765d61d8327deb882cf99";
const base64 = "SGVsbG8sIHdvcmxkISBUaGlzIGlzIGEgbG9uZ2VyIHN0cmluZyBvZiBiYXNlNjQu";
fetch("https://jsonplaceholder.typicode.com/todos/1?userId=10&_limit=20")
  .then(response => response.json()).catch(error => { throw new Error("dead: " + error); });
localStorage.setItem("token", token); // token is null here
```
""",
    """```ini
[program:worker]
command=/usr/bin/python3 -m app.worker --password-file /run/secrets/db --token-ttl 3600
environment=SECRET_KEY="%(ENV_SECRET_KEY)s",ACCESS_TOKEN_EXPIRE_MINUTES="30"
```
The access token expires after 30 minutes, the refresh token after 14 days. The password is hashed with bcrypt, and
the API key is stored in Vault.
""",
    """## Bericht

Die Rechnung Nr. 2024-0815 vom 01.02.2024 über 1.234,56 € ist am 15.02.2024 fällig. La commande n° 12345678 du
12/03/2024 a été expédiée. Pedido 0987654321, factura 2024/000045.
""",
    """Matrix:

```
0.1234 0.5678 0.9012 0.3456
1000 2000 3000 4000 5000
12 345 6789 0123 4567 8901
```
Loss after epoch 10: 0.00123456789 (lr=3e-4, seed=1234567890, steps=1000000).
""",
    """The man page says: *abort()* raises SIGABRT; a master takes orders from no slave any more since both were renamed
to primary and replica; orphaned inodes are reaped, and dangling pointers will shoot you in the foot. Attack the problem
from the other end: bisect, blame, and execute the failing test alone.
""",
)
