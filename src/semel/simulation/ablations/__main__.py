"""`python -m semel.simulation.ablations`"""

from semel.simulation.ablations import main

raise SystemExit(main())
