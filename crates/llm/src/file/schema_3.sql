-- Money is in nano-dollars from here on: rounded to a micro-dollar, five hundred short embeddings cost seventeen times their price.
-- 9223372036854775 micro-dollars are the most that fit.
UPDATE scopes SET
    cap = min(cap, 9223372036854775) * 1000, cost = cost * 1000, open_ceiling = open_ceiling * 1000,
    unknown_ceiling = unknown_ceiling * 1000;
UPDATE calls SET ceiling = ceiling * 1000;
UPDATE spend SET cost = cost * 1000, unknown_ceiling = unknown_ceiling * 1000;
