-- What people look at.
CREATE MATERIALIZED VIEW gold_revenue COMMENT 'Revenue by country'
AS SELECT country, count(*) AS orders, sum(amount) AS revenue FROM silver_orders GROUP BY country;

CREATE STREAMING TABLE gold_large COMMENT 'Orders above 100'
AS SELECT id, name, amount FROM STREAM(silver_orders) WHERE amount > 100;
