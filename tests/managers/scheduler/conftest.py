import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # fake_worker and harness are this folder's own
